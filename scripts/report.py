"""Write report.md and report.html from finished predictions, and print the table."""

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, run, say where things went."""
    from minionerec.evaluation.report import ReportConfig, run_report

    config = parse_config(ReportConfig, __doc__ or "", demo="configs/demo/report.yaml")
    result = run_report(config)
    print(result.table)
    print(f"Report: {result.html} (and {result.markdown})")


if __name__ == "__main__":
    run_command(main)
