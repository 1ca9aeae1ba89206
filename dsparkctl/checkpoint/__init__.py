"""What lies on disk, read without torch: files, headers, the model's shape, its tensors."""
