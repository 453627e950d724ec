"""Models and how they are searched: layers, prompts, constrained decoding, backbones, sequential recommenders."""
