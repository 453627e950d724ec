"""Learn people's pairwise choices; measure every model against floors and, on synthetic data, against the ceiling."""

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, run, write the reports, say where they went."""
    from minionerec.preference.config import PreferenceConfig

    config = parse_config(PreferenceConfig, __doc__ or "", demo="configs/preference/demo.yaml")
    from minionerec.preference.run import run_preference
    from minionerec.reports.preference_report import write_preference_reports

    result = run_preference(config)
    for path in write_preference_reports(config, result):
        print(f"report: {path}")


if __name__ == "__main__":
    run_command(main)
