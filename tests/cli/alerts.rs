//! Tests that each alert has a test in which it fires.

/// Tests that each alert of the rules fires in a test: in the unit tests of the rules, or in the
/// tests with a real Prometheus. A line that expects no alert does not count.
#[test]
fn each_alert_fires_in_a_test() {
    let rules = include_str!("../../deploy/prometheus/seriatim.rules.yml");
    let units = include_str!("../../deploy/prometheus/seriatim.rules.test.yml");
    let system = include_str!("../prometheus/main.rs");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 15, "{alerts:?}");
    let fires = |alert: &&str| {
        let (in_units, counted) = (
            format!("alertname: {alert}"),
            format!("alertname=\"{alert}\""),
        );
        let mut lines = units.lines().map(str::trim).peekable();
        let mut in_units = std::iter::from_fn(|| Some((lines.next()?, lines.peek().copied()?)))
            .any(|(line, next)| line == in_units && next == "exp_alerts:");
        let mut blocks = units.split("- expr: ").skip(1);
        in_units |= blocks.any(|block| {
            block
                .lines()
                .next()
                .is_some_and(|line| line.contains(&counted))
                && block.contains("value: 1")
        });
        in_units || system.contains(&format!("\"{alert}\""))
    };
    let untested: Vec<_> = alerts.iter().filter(|alert| !fires(alert)).collect();
    assert!(untested.is_empty(), "no test lets {untested:?} fire");
}
