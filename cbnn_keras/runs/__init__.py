"""What training leaves behind, in memory and on disk."""
