"""Sequential recommenders: models over item ids, their protocols, one trainer and one evaluator."""
