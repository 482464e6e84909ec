//! axe-core, which examines a page for barriers.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::driver::{Driver, as_text};

/// A rule of axe-core that a page breaks.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    /// Name of the rule, e.g. `color-contrast`.
    pub(crate) id: String,
    /// `minor`, `moderate`, `serious` or `critical`.
    pub(crate) impact: String,
    /// The elements: HTML, then the reason.
    pub(crate) nodes: Vec<(String, String)>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "axe: {} ({}), {} elements",
            self.id,
            self.impact,
            self.nodes.len()
        )?;
        for (html, reason) in self.nodes.iter().take(3) {
            let html: String = html.chars().take(200).collect();
            write!(f, "\n      {html}\n      {}", reason.replace('\n', " "))?;
        }
        Ok(())
    }
}

/// Returns the rules that the page breaks.
pub(crate) async fn axe(driver: &Driver) -> Vec<Violation> {
    // scripts/lib/browser puts the file into the directory of the build.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("a directory");
    let file = target.join("browser/axe.min.js");
    let source = std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; scripts/test-browser brings this file",
            file.display()
        )
    });
    // Only violations are returned: a page has thousands of passes.
    let run = "return axe.run({ resultTypes: ['violations'] }).then(found => found.violations.map(one => ({
        id: one.id, impact: one.impact, nodes: one.nodes.map(node => [node.html, node.failureSummary]) })));";
    // axe-core itself needs timers. Scripts that the page was loaded without do not run later.
    let scripts = driver.scripts_are_allowed();
    driver.allow_scripts(true).await;
    let found = driver.execute(&format!("{source};\n{run}"), &[]).await;
    driver.allow_scripts(scripts).await;
    let node = |node: &Value| (as_text(&node[0]), as_text(&node[1]));
    let violation = |one: &Value| Violation {
        id: as_text(&one["id"]),
        impact: as_text(&one["impact"]),
        nodes: one["nodes"]
            .as_array()
            .expect("elements")
            .iter()
            .map(node)
            .collect(),
    };
    found
        .as_array()
        .expect("violations")
        .iter()
        .map(violation)
        .collect()
}
