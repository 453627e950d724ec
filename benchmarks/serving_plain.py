"""The plain server that `serving.py plain` measures against: Starlette, and one stock `generate` a request.

The trie is a logits processor, weights, prompts and catalogue are the same, and so are the lists. Requests are answered
as Starlette does by itself, in its threads, or one at a time.
"""

import argparse
import threading
from typing import Any

import numpy as np


def main() -> None:
    """Serve until the process is ended; prints its address."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--beams", type=int, default=50)
    parser.add_argument("--one-at-a-time", action="store_true", help="a lock around generate")
    args = parser.parse_args()

    import uvicorn
    from pydantic import BaseModel
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from stock import StockRanker

    from minionerec.data.corpus import Corpus
    from minionerec.models.backbone.bundle import load_bundle
    from minionerec.recommend.rankers.language import Search
    from minionerec.recommend.rankers.protocol import Queries
    from minionerec.serve.server import address_of, bind

    corpus = Corpus.load(args.corpus)
    ranker = StockRanker(load_bundle(args.checkpoint), corpus, Search(batch_size=1, beams=args.beams))
    ids, titles = corpus.items["item_id"].astype(str).tolist(), corpus.items["title"].tolist()
    index = {item_id: position for position, item_id in enumerate(ids)}
    lock = threading.Lock()

    class Question(BaseModel):
        history: list[str]
        k: int = 10

    def rank(question: Question) -> Any:
        history = np.array([index[item_id] for item_id in question.history][-corpus.max_history :], dtype=np.int32)
        return ranker.rank(Queries([history]), question.k)

    def answered(body: bytes) -> dict[str, Any]:
        question = Question.model_validate_json(body)
        if args.one_at_a_time:
            with lock:
                found = rank(question)
        else:
            found = rank(question)
        pairs = list(zip(found.items[0], found.scores[0], strict=True))[: question.k]
        return {"items": [{"item_id": ids[item], "title": titles[item], "score": score} for item, score in pairs]}

    async def recommend(request: Request) -> JSONResponse:
        return JSONResponse(await run_in_threadpool(answered, await request.body()))

    app = Starlette(routes=[Route("/v1/recommend", recommend, methods=["POST"])])
    listening = bind("127.0.0.1", 0)
    print(f"plain: {address_of(listening)}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
