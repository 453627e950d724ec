"""The generated city: a shop district of any size whose next purchase has a known probability.

Items are in *shelves* of 20, eight shelves make an *aisle*, eight aisles a *department*. The position of an item on its
shelf is its *style*; the same 20 styles are sold in the whole city. A user's next purchase is drawn as a shelf, then an
item of it. The shelf, given the newest item, comes from one of four sources:

1. *follow*: a shelf that goes with that of the newest item: the next of its aisle (0.6), a certain one of the same
   department (0.3), a certain one anywhere (0.1);
2. *stay*: the shelf of the newest item again (0.6), or any of its aisle (0.4);
3. *taste*: one of four shelves that the user likes (0.4, 0.3, 0.2, 0.1), most of them close to each other;
4. *fashion*: any shelf by its appeal, which follows a power law and drifts with the seasons.

How much each counts depends on whether the session continues (at most half an hour since the newest item) or begins:
`SHARES`. The item of the shelf is, with probability 0.7, of one of the user's two favourite styles (0.7, 0.3), else
whichever sells at the time: shares fall with the rank on the shelf, and every item falls by one rank each epoch until,
after the last, it becomes the best seller again. Fashion knows no favourite styles.

So a pair of items carries little information, but shelves (from what is newest) and styles (from the whole history) can
be learned apart and put together, and both are in the text of the items. The shelves and the styles that a user likes
are drawn once and never shown. Given them, the newest item and the two times, `City.probabilities`
(`minionerec.contrib.city.law`) is the exact distribution of every purchase. No recommender knows as much, so the
expected metrics of the ranking by it are above those of every recommender.

A city with columns (`minionerec.contrib.city.columns`) has views and carts before purchases, and a brand, a category
and a price for each item; purchases depend on the brand, the price and the weekday too. Its ceilings know no hidden
band or brand: they are exact for a history with its columns, and for one without some of them.

All is drawn from Philox counters keyed by seed and block of users (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011), so that any block can be made alone, in any process, with the same bytes.
"""
