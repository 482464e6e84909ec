//! The spots of the scripts, whose runs a marked copy of the scripts reports.
//!
//! A spot is the first statement of a block with all statements behind it, up to the end of the
//! block. The statements behind an `if`, a loop or an inner block are one more spot, because these
//! may leave the block. So a test that never runs a mutant's spot cannot notice the mutant.

use std::ops::Range;

use anyhow::anyhow;
use full_moon::ast::{Block, Stmt};
use full_moon::node::Node;
use full_moon::visitors::Visitor;

use super::generate::{Mutant, Sources};

/// All spots of all scripts. The index of a spot is its number.
#[derive(Debug, Default)]
pub(crate) struct Spots(Vec<(String, Range<usize>)>);

impl Spots {
    /// Returns the spots of these scripts.
    pub(crate) fn of(sources: &Sources) -> anyhow::Result<Self> {
        let mut spots = Self::default();
        for (file, source) in sources {
            let ast = full_moon::parse(source).map_err(|_| anyhow!("{file} is not Lua"))?;
            let mut found = Found::default();
            found.visit_ast(&ast);
            spots
                .0
                .extend(found.0.into_iter().map(|range| (file.clone(), range)));
        }
        Ok(spots)
    }

    /// Returns the number of the innermost spot around a mutant.
    pub(crate) fn around(&self, mutant: &Mutant) -> Option<usize> {
        let around = |(file, range): &(String, Range<usize>)| {
            *file == mutant.file && range.contains(&mutant.start())
        };
        (0..self.0.len())
            .filter(|at| around(&self.0[*at]))
            .max_by_key(|at| self.0[*at].1.start)
    }

    /// Returns a script that writes `@NUMBER` to the log of Redis at the first run of each spot in a
    /// call. The marks stay on their lines and declare nothing, so the limits of Lua on locals and
    /// upvalues do not matter. `ARGV` is a new table in each call.
    pub(crate) fn marked(&self, file: &str, source: &str) -> String {
        let mut marks: Vec<_> = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, spot)| spot.0 == file)
            .collect();
        marks.sort_by_key(|(_, (_, range))| std::cmp::Reverse(range.start));
        let mut marked = source.to_owned();
        for (at, (_, range)) in marks {
            let seen = format!("ARGV['@{at}']");
            let mark = format!(
                "if not {seen} then {seen} = true redis.log(redis.LOG_WARNING, '@{at}') end "
            );
            marked.insert_str(range.start, &mark);
        }
        marked
    }

    /// Returns the number of the spot in a line of the log.
    pub(crate) fn in_log(line: &str) -> Option<usize> {
        line.rsplit_once(" # @")?.1.parse().ok()
    }
}

#[derive(Default)]
struct Found(Vec<Range<usize>>);

impl Visitor for Found {
    fn visit_block(&mut self, block: &Block) {
        let Some(end) = block.end_position().map(|position| position.bytes()) else {
            return;
        };
        let mut begins = true;
        for stmt in block.stmts() {
            self.add(begins, stmt, end);
            begins = matches!(
                stmt,
                Stmt::Do(_)
                    | Stmt::If(_)
                    | Stmt::GenericFor(_)
                    | Stmt::NumericFor(_)
                    | Stmt::Repeat(_)
                    | Stmt::While(_)
            );
        }
        if let Some(last) = block.last_stmt() {
            self.add(begins, last, end);
        }
    }
}

impl Found {
    fn add(&mut self, begins: bool, stmt: &impl Node, end: usize) {
        if begins && let Some(start) = stmt.start_position() {
            self.0.push(start.bytes()..end);
        }
    }
}
