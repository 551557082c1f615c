"""What lies on disk: files, folders and the forms of models there."""
