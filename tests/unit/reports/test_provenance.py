"""Where a report's numbers come from: as far back as the artefacts still lie there unchanged."""

from minionerec.core.artefacts import fingerprint, write_artefact
from minionerec.reports.document import Details, Table
from minionerec.reports.provenance import configuration, manifests


def write(folder, kind, inputs=(), content="x", seed=None):
    with write_artefact(
        folder, kind, config={"of": kind}, inputs={each.name: each for each in inputs}, seed=seed
    ) as fresh:
        (fresh / "file").write_text(content)
    return folder


def test_it_goes_back_as_far_as_artefacts_are_unchanged(tmp_path):
    corpus = write(tmp_path / "corpus", "corpus")
    model = write(tmp_path / "model", "checkpoint", [corpus], seed=7)
    made = write(tmp_path / "made", "predictions", [corpus, model])
    (tmp_path / "file.json").write_text("{}")
    inputs = {"predictions x": made, "ceiling": tmp_path / "file.json", "reference": tmp_path / "file.json"}
    assert list(manifests(inputs)) == [str(made), str(corpus), str(model)]
    section = configuration(inputs)
    table, packages, *details = section.blocks
    assert isinstance(table, Table) and isinstance(packages, Table)
    assert [row[:3] for row in table.rows] == [
        [str(made), "predictions", "-"],
        [str(corpus), "corpus", "-"],
        [str(model), "checkpoint", "7"],
        [str(tmp_path / "file.json"), "file", "-"],  # the ceiling's; published numbers name their source themselves
    ]
    assert table.rows[2][3] == fingerprint(model)[:16]
    assert all(isinstance(block, Details) for block in details) and '"of": "checkpoint"' in details[2].text

    write(corpus, "corpus", content="made anew")
    assert list(manifests(inputs)) == [str(made), str(model)]
    assert list(manifests({"corpus": corpus, **inputs})) == [str(corpus), str(made), str(model)]  # itself an input
