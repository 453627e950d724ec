"""Sequential recommenders of later papers: WEARec, FEARec, PSWRec, LightSANs, TRM4Rec and RPG."""
