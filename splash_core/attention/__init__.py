"""The layouts, one file for each way of bringing queries and keys together, behind one interface."""
