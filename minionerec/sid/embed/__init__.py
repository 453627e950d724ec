"""Item text to vectors: TF-IDF + SVD, any Hugging Face encoder, or a ready `.npy` aligned by item."""
