"""The demo shop: a small generated shop whose next purchase has a known probability, so results have a known ceiling.

Twelve departments hold five product lines each, and each line comes in the department's five collections (a brand
with its material and colour): 300 items. What a customer buys next depends on nothing but the last ten purchases, and
is drawn from a mixture of three:

1. *follow* (0.50): from the last item on to the same collection's next line (0.62 of it; after the last line to the
   neighbouring department), to the next collection of the same line (0.26), or two lines on (0.12);
2. *taste* (0.35): a department from those in the history, newer ones weighing more (each step back 0.85 times), and
   within it an item by its appeal, three times as much for collections that the history holds;
3. *fashion* (0.15): any item by its appeal in the whole shop.

No hidden state is left, so `demo_probabilities` (`minionerec.data.demo.process`) is the exact distribution behind every
row, and no recommender can beat, but by luck, the ranking by these probabilities. Its expected metrics are the ceiling
in `ceiling.json`.
"""
