"""The stage that trains a TIGER (`tiger`): from the history's semantic IDs to the next one's."""
