"""Supervised fine-tuning and GRPO, as thin subclasses of TRL's trainers."""
