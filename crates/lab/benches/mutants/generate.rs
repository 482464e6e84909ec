//! Generates mutants: scripts with one small change each.
//!
//! | in the file | the mutant |
//! |---|---|
//! | a call, an assignment, an `if`, a loop, a block, a `break`, a bare `return` | goes |
//! | `return x` | `return`; not if the value is a constant, and not at the end of the file |
//! | `local x = f(y)` | `local x = nil`; not if the value is a constant, a table, a function or a plain name |
//! | the condition of `if`, `elseif`, `while`, `until` | `not (…)` |
//! | `and`, `or` | the other one |
//! | `<`, `<=`, `>`, `>=` | with the bound, or without it |
//! | `==`, `~=` | the other one; not if it is a whole condition, which is negated already |
//! | `+`, `-` | the other one |
//! | a whole number | one more |
//! | `true`, `false` | the other one |
//!
//! Declarations of functions are never removed: no script works without its functions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use full_moon::ast::{self, BinOp, Expression, LastStmt, Stmt, Suffix, Var};
use full_moon::node::Node;
use full_moon::tokenizer::{Symbol, TokenReference, TokenType};
use full_moon::visitors::Visitor;

/// One change of one file.
#[derive(Debug, Clone)]
pub(crate) struct Mutant {
    pub(crate) file: String,
    /// Line number, from 1.
    pub(crate) line: usize,
    /// Text of the unchanged line, without indentation.
    pub(crate) text: String,
    /// The change, e.g. `<= to <`. File, line text and change together identify one mutant.
    pub(crate) what: String,
    range: Range<usize>,
    with: String,
}

impl Mutant {
    /// Returns the text of the changed file.
    pub(crate) fn applied(&self, source: &str) -> String {
        [
            &source[..self.range.start],
            &self.with,
            &source[self.range.end..],
        ]
        .concat()
    }

    /// Returns the position of the change in the file.
    pub(crate) fn start(&self) -> usize {
        self.range.start
    }

    /// Returns the identity of the mutant, which does not depend on line numbers.
    pub(crate) fn key(&self) -> (&str, &str, &str) {
        (&self.file, &self.text, &self.what)
    }

    pub(crate) fn owned_key(&self) -> (String, String, String) {
        (self.file.clone(), self.text.clone(), self.what.clone())
    }
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            file,
            line,
            what,
            text,
            ..
        } = self;
        write!(f, "{file}:{line}: {what} in `{text}`")
    }
}

/// The scripts: the text of each path such as `lua/objects/hold.lua`.
pub(crate) type Sources = BTreeMap<String, String>;

/// Reads all scripts of the tree.
pub(crate) fn sources(tree: &Path) -> anyhow::Result<Sources> {
    let mut sources = Sources::new();
    let mut folders = vec!["lua".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(tree.join(&folder)).with_context(|| folder.clone())? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.ends_with(".lua") {
                let source = std::fs::read_to_string(entry.path()).with_context(|| path.clone())?;
                sources.insert(path, source);
            }
        }
    }
    Ok(sources)
}

/// Returns all mutants of all scripts.
pub(crate) fn all(sources: &Sources) -> anyhow::Result<Vec<Mutant>> {
    let mutants: Vec<_> = sources
        .iter()
        .map(|(file, source)| mutants_of(file, source))
        .collect::<Result<_, _>>()?;
    Ok(mutants.concat())
}

/// Returns all mutants of a file that compile, in the order of the file.
pub(crate) fn mutants_of(file: &str, source: &str) -> anyhow::Result<Vec<Mutant>> {
    let ast = match full_moon::parse(source) {
        Ok(ast) => ast,
        Err(errors) => bail!(
            "{file}: {}",
            errors.first().map_or_else(String::new, ToString::to_string)
        ),
    };
    let mut found = Found {
        source,
        changes: Vec::new(),
        stay: HashSet::new(),
        conditions: HashSet::new(),
    };
    if let Some(last) = ast.nodes().last_stmt() {
        found.stay.extend(start(last));
    }
    found.visit_ast(&ast);
    let mut changes = found.changes;
    changes.sort_by_key(|change| (change.range.start, change.range.end));

    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    let mut mutants = Vec::new();
    for Change { range, with, what } in changes {
        let was = source
            .get(range.clone())
            .with_context(|| format!("{file}: the parser leads out of the file"))?;
        ensure!(
            was.trim() == was && !was.is_empty(),
            "{file}: the parser leads to {was:?}"
        );
        let line = source[..range.start].matches('\n').count() + 1;
        let text = source
            .lines()
            .nth(line - 1)
            .unwrap_or_default()
            .trim()
            .to_owned();
        let times = seen.entry((text.clone(), what.clone())).or_default();
        *times += 1;
        let what = if *times == 1 {
            what
        } else {
            format!("{what}, no. {times}")
        };
        mutants.push(Mutant {
            file: file.to_owned(),
            line,
            text,
            what,
            range,
            with,
        });
    }
    // A mutant that does not compile would be caught by any test.
    mutants.retain(|mutant| full_moon::parse(&mutant.applied(source)).is_ok());
    Ok(mutants)
}

struct Change {
    range: Range<usize>,
    with: String,
    what: String,
}

/// The mutants found so far in a file.
struct Found<'a> {
    source: &'a str,
    changes: Vec<Change>,
    /// Positions of statements that must stay.
    stay: HashSet<usize>,
    /// Start and end positions of conditions.
    conditions: HashSet<(usize, usize)>,
}

fn start(node: &impl Node) -> Option<usize> {
    node.start_position().map(|position| position.bytes())
}

fn range_of(node: &impl Node) -> Option<Range<usize>> {
    let (start, end) = node.range()?;
    Some(start.bytes()..end.bytes())
}

impl Found<'_> {
    fn change(&mut self, node: &impl Node, with: impl Into<String>, what: impl Into<String>) {
        if let Some(range) = range_of(node) {
            self.changes.push(Change {
                range,
                with: with.into(),
                what: what.into(),
            });
        }
    }

    fn token(&mut self, token: &TokenReference, with: &str) {
        self.change(token, with, format!("{} to {with}", token.token()));
    }

    fn condition(&mut self, condition: &Expression) {
        let Some(range) = range_of(condition) else {
            return;
        };
        self.conditions.insert((range.start, range.end));
        // The positions given by the parser are checked later.
        let text = self.source.get(range).unwrap_or_default();
        self.change(condition, format!("not ({text})"), "negate the condition");
    }

    fn operator(&mut self, whole: &Expression, operator: &BinOp) {
        let is_condition = range_of(whole)
            .is_some_and(|range| self.conditions.contains(&(range.start, range.end)));
        let with = match operator {
            BinOp::And(_) => "or",
            BinOp::Or(_) => "and",
            BinOp::LessThan(_) => "<=",
            BinOp::LessThanEqual(_) => "<",
            BinOp::GreaterThan(_) => ">=",
            BinOp::GreaterThanEqual(_) => ">",
            BinOp::TwoEqual(_) if !is_condition => "~=",
            BinOp::TildeEqual(_) if !is_condition => "==",
            BinOp::Plus(_) => "-",
            BinOp::Minus(_) => "+",
            _ => return,
        };
        self.token(operator.token(), with);
    }
}

fn is_constant(value: &Expression) -> bool {
    matches!(
        value,
        Expression::Number(_) | Expression::String(_) | Expression::Symbol(_)
    )
}

/// Returns whether the value is a plain name, or a path of names such as `redis.call`.
fn is_plain_name(value: &Expression) -> bool {
    match value {
        Expression::Var(Var::Name(_)) => true,
        Expression::Var(Var::Expression(of)) => of
            .suffixes()
            .all(|suffix| matches!(suffix, Suffix::Index(ast::Index::Dot { .. }))),
        _ => false,
    }
}

impl Visitor for Found<'_> {
    fn visit_function_body(&mut self, body: &ast::FunctionBody) {
        // A bare `return` at the end of a function has no effect.
        if let Some(LastStmt::Return(last)) = body.block().last_stmt()
            && last.returns().is_empty()
        {
            self.stay.extend(start(last));
        }
    }

    fn visit_stmt(&mut self, stmt: &Stmt) {
        let what = match stmt {
            Stmt::Assignment(_) => "remove the assignment",
            Stmt::Do(_) => "remove the block",
            Stmt::FunctionCall(_) => "remove the call",
            Stmt::If(_) => "remove the if",
            Stmt::GenericFor(_) | Stmt::NumericFor(_) | Stmt::Repeat(_) | Stmt::While(_) => {
                "remove the loop"
            }
            _ => return,
        };
        // The replacement must not be empty, or two statements may become one.
        self.change(stmt, "do end", what);
    }

    fn visit_last_stmt(&mut self, last: &LastStmt) {
        if start(last).is_some_and(|at| self.stay.contains(&at)) {
            return;
        }
        match last {
            LastStmt::Break(_) => self.change(last, "do end", "remove the break"),
            LastStmt::Return(values) if values.returns().is_empty() => {
                self.change(last, "do end", "remove the return")
            }
            LastStmt::Return(values) if !values.returns().iter().all(is_constant) => {
                self.change(last, "return", "return nothing");
            }
            _ => {}
        }
    }

    fn visit_local_assignment(&mut self, local: &ast::LocalAssignment) {
        let keeps = |value: &Expression| {
            is_constant(value)
                || is_plain_name(value)
                || matches!(
                    value,
                    Expression::Function(_) | Expression::TableConstructor(_)
                )
        };
        if !local.expressions().iter().all(keeps) {
            self.change(local.expressions(), "nil", "nil for the value");
        }
    }

    fn visit_if(&mut self, node: &ast::If) {
        self.condition(node.condition());
    }

    fn visit_else_if(&mut self, node: &ast::ElseIf) {
        self.condition(node.condition());
    }

    fn visit_while(&mut self, node: &ast::While) {
        self.condition(node.condition());
    }

    fn visit_repeat(&mut self, node: &ast::Repeat) {
        self.condition(node.until());
    }

    fn visit_expression(&mut self, expression: &Expression) {
        match expression {
            Expression::BinaryOperator { binop, .. } => self.operator(expression, binop),
            Expression::Number(number) => {
                // Only a whole number is increased, not a fraction.
                if let Some(next) = number
                    .token()
                    .to_string()
                    .parse::<u64>()
                    .ok()
                    .and_then(|number| number.checked_add(1))
                {
                    self.token(number, &next.to_string());
                }
            }
            Expression::Symbol(symbol) => match symbol.token().token_type() {
                TokenType::Symbol {
                    symbol: Symbol::True,
                } => self.token(symbol, "false"),
                TokenType::Symbol {
                    symbol: Symbol::False,
                } => self.token(symbol, "true"),
                _ => {}
            },
            _ => {}
        }
    }
}
