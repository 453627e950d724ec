"""The language model: pretrained or from scratch, its vocabulary extended by SID tokens, saved as a checkpoint."""
