//! The rows of the table: seriatim with handlers in each language, and the other tools.

use super::Tool;
use crate::bench::seriatim::Seriatim;
use crate::bench::system::System as _;

/// The row of seriatim with handlers in Rust, which this process measures.
pub(super) const RUST: &str = Seriatim::NAME;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Node,
    Python,
}

/// A row that a program measures.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) language: Language,
    /// `None`: seriatim, with the package for the language.
    pub(super) tool: Option<Tool>,
    pub(super) script: &'static str,
    /// Further arguments of the program.
    pub(super) arguments: &'static [&'static str],
    /// A slow tool gets the first events only: all events divided by this number.
    divisor: usize,
}

const ROWS: [Row; 6] = [
    Row {
        name: "seriatim (Node)",
        language: Language::Node,
        tool: None,
        script: "seriatim.mjs",
        arguments: &[],
        divisor: 1,
    },
    Row {
        name: "groupmq",
        language: Language::Node,
        tool: Some(Tool::Groupmq),
        script: "groupmq.mjs",
        arguments: &[],
        divisor: 5,
    },
    Row {
        name: "BullMQ",
        language: Language::Node,
        tool: Some(Tool::Bullmq),
        script: "bullmq.mjs",
        arguments: &["1"],
        divisor: 10,
    },
    Row {
        name: "BullMQ (64)",
        language: Language::Node,
        tool: Some(Tool::Bullmq),
        script: "bullmq.mjs",
        arguments: &["64"],
        divisor: 10,
    },
    Row {
        name: "seriatim (Python)",
        language: Language::Python,
        tool: None,
        script: "seriatim_tool.py",
        arguments: &[],
        divisor: 1,
    },
    Row {
        name: "Celery",
        language: Language::Python,
        tool: Some(Tool::Celery),
        script: "celery_tool.py",
        arguments: &[],
        divisor: 50,
    },
];

impl Row {
    /// Returns the rows of these tools, and that of seriatim for each of their languages.
    pub(super) fn of(tools: &[Tool]) -> Vec<&'static Row> {
        let is_asked = |row: &&Row| row.tool.is_some_and(|tool| tools.contains(&tool));
        let languages: Vec<Language> = ROWS
            .iter()
            .filter(is_asked)
            .map(|row| row.language)
            .collect();
        ROWS.iter()
            .filter(|row| is_asked(row) || row.tool.is_none() && languages.contains(&row.language))
            .collect()
    }

    /// Returns the number of events that this row gets of so many.
    pub(super) fn events(&self, of: usize) -> usize {
        (of / self.divisor).max(1)
    }
}

/// The programs, and the versions of the tools. Each is written into the folder of the tools.
pub(super) const FILES: [(&str, &str); 10] = [
    ("package.json", PACKAGE),
    ("package-lock.json", LOCK),
    ("requirements.txt", REQUIREMENTS),
    ("driver.mjs", include_str!("../../../against/driver.mjs")),
    ("bullmq.mjs", include_str!("../../../against/bullmq.mjs")),
    ("groupmq.mjs", include_str!("../../../against/groupmq.mjs")),
    (
        "seriatim.mjs",
        include_str!("../../../against/seriatim.mjs"),
    ),
    ("driver.py", include_str!("../../../against/driver.py")),
    (
        "celery_tool.py",
        include_str!("../../../against/celery_tool.py"),
    ),
    (
        "seriatim_tool.py",
        include_str!("../../../against/seriatim_tool.py"),
    ),
];
pub(super) const PACKAGE: &str = include_str!("../../../against/package.json");
pub(super) const LOCK: &str = include_str!("../../../against/package-lock.json");
pub(super) const REQUIREMENTS: &str = include_str!("../../../against/requirements.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_brings_seriatim_in_its_language() {
        let names =
            |tools: &[Tool]| -> Vec<&str> { Row::of(tools).iter().map(|row| row.name).collect() };
        assert_eq!(names(&[Tool::Celery]), ["seriatim (Python)", "Celery"]);
        assert_eq!(names(&[Tool::Groupmq]), ["seriatim (Node)", "groupmq"]);
        assert_eq!(
            names(&[Tool::Bullmq, Tool::Celery]).len(),
            5,
            "two rows of BullMQ"
        );
    }

    #[test]
    fn a_slow_tool_gets_some_event() {
        assert!(ROWS.iter().all(|row| row.events(1) == 1));
    }

    #[test]
    fn every_program_is_carried() {
        for row in &ROWS {
            assert!(
                FILES.iter().any(|(name, _)| *name == row.script),
                "{}",
                row.script
            );
        }
    }
}
