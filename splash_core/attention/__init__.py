"""The four layouts, one file each, behind one interface."""
