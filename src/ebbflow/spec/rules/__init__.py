"""What lint checks beyond single fields, one module for each subject."""
