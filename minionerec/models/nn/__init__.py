"""Parts of neural networks that several models share: none of them knows an item's SID, a prompt or a file."""
