"""Parts of neural networks that several models share."""
