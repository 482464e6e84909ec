//! Reads the outputs of workers and the emitted events for [`seriatim::verify`], and shows the faults.

use std::fmt::Write as _;

use seriatim::verify::{Judge, Kind, Report};

use crate::exit::{Exit, Failure};
use crate::lines::{Fields, Lines};

/// Reads the output file of one worker. A file that has lines but no envelope is an error, because
/// the user has probably named a wrong file.
pub fn output(judge: &mut Judge, mut lines: Lines) -> anyhow::Result<()> {
    let file = judge.file(lines.name());
    let (mut good, mut bad) = (0_u64, 0_u64);
    while let Some(line) = lines.next_line()? {
        match judge.output(file, line.number, line.text, line.ended) {
            true => good += 1,
            false => bad += u64::from(line.ended),
        }
    }
    if good == 0 && bad > 0 {
        let name = lines.name();
        let what = format!(
            "{name} is not an output: no line of it is an envelope with id, prev, object and event"
        );
        return Err(Failure::with(Exit::Input, what));
    }
    Ok(())
}

/// Reads one file of emitted events (`--against`).
pub fn input(judge: &mut Judge, mut lines: Lines, fields: &Fields) -> anyhow::Result<()> {
    let name = lines.name().to_owned();
    let file = judge.file(&name);
    judge.against_input();
    while let Some(line) = lines.next_line()? {
        if !line.text.trim_ascii().is_empty() {
            let read = fields.of(line.text);
            let (object, event) = read.map_err(|error| {
                Failure::with(
                    Exit::Input,
                    format!("{name}:{} is not an input line: {error:#}", line.number),
                )
            })?;
            judge.expect(file, line.number, &object, event);
        }
    }
    Ok(())
}

/// Writes the first faults of each kind, with their places.
pub fn examples(report: &Report, out: &mut String) -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let mut shown = 0;
        for example in report
            .examples
            .iter()
            .filter(|example| example.kind == kind)
        {
            writeln!(
                out,
                "  {kind}: {}:{}: {}",
                example.file, example.line, example.what
            )?;
            shown += 1;
        }
        if report.count(kind) > shown {
            writeln!(out, "  {kind}: … and {} more", report.count(kind) - shown)?;
        }
    }
    Ok(())
}
