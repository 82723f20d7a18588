"""What is compared: self-attention sublayers of ours, of fairseq, of torch and of others."""
