"""What a group runs next: sequences, pages, batches, switches; pure."""
