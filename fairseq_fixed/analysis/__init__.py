"""What the heads of a mix, or of a trained checkpoint, look like."""
