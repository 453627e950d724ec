"""The engine `spark` of prepare-data: the corpus builder's statements on one machine or many."""
