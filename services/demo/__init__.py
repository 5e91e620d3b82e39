"""`splash demo`: a real chat while both phases walk through all twelve directed layout switches."""
