"""The stage that trains a TIGER (`minionerec.backbone.tiger`): from the history's semantic IDs to the next one's."""
