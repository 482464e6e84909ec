//! Reads the rows of one object in a stream, with `lua/operator/of_object.lua`.
//!
//! One call of the script looks at few rows, because each row may be large.

use redis::Value;
use redis::aio::ConnectionLike;

use super::{ControlError, Cursor, reply};
use crate::keys::Keys;
use crate::wire;

/// Maximum number of rows at which one call of the script looks.
const PER_CALL: u64 = 250;

/// The rows to look for.
pub(super) struct Search<'a> {
    /// The key of the stream.
    pub stream: &'a str,
    /// The object.
    pub object: &'a [u8],
    /// Whether the search goes from newer to older rows.
    pub newest: bool,
    /// Maximum number of rows to look at.
    pub looked_max: u64,
    /// Maximum number of rows of the object to find.
    pub found_max: usize,
    /// Whether the search ends when it has read about 1 MiB.
    pub ends_by_bytes: bool,
    /// The fields to return, each with the maximum number of bytes of its value; 0 for whole
    /// values.
    pub fields: &'a [(&'a str, usize)],
}

/// A value of a field.
#[derive(Debug, Clone, Default)]
pub(super) struct Field {
    /// The value, or its beginning; none if the row lacks the field.
    pub value: Option<Vec<u8>>,
    /// Length of the whole value, if it is cut.
    pub whole_bytes: Option<u64>,
}

impl Field {
    pub(super) fn text(&self) -> Option<String> {
        self.value
            .as_deref()
            .map(|value| String::from_utf8_lossy(value).into_owned())
    }

    pub(super) fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }
}

/// A row of the object: the id of the row, and one value for each requested field.
pub(super) struct Row {
    pub id: String,
    pub fields: std::vec::IntoIter<Field>,
}

impl Row {
    /// Returns the next of the requested fields.
    pub(super) fn next(&mut self) -> Field {
        self.fields.next().unwrap_or_default()
    }

    /// Returns the row in the form of [`reply::entries`]: with the name of each field, and with the
    /// object. A cut field `event` comes with `event_bytes`, its whole length.
    pub(super) fn named(self, object: &[u8], names: &[(&str, usize)]) -> reply::Entry {
        let mut fields = vec![("object".to_owned(), Value::BulkString(object.to_vec()))];
        for ((name, _), Field { value, whole_bytes }) in names.iter().zip(self.fields) {
            fields.extend(value.map(|value| ((*name).to_owned(), Value::BulkString(value))));
            if let (Some(bytes), "event") = (whole_bytes, *name) {
                fields.push((
                    "event_bytes".to_owned(),
                    Value::BulkString(bytes.to_string().into_bytes()),
                ));
            }
        }
        (self.id, fields)
    }
}

/// The result of a search.
#[derive(Default)]
pub(super) struct Found {
    /// The rows of the object, in the order of the search.
    pub rows: Vec<Row>,
    /// Number of rows that were looked at.
    pub looked: u64,
    /// Id of the last row that was looked at; none if there was no row.
    pub last: Option<String>,
    /// Whether the search has reached the end of the stream.
    pub complete: bool,
    /// The error of Redis if the key is not a stream. Then no row was read.
    pub wrong_type: Option<ControlError>,
}

impl Found {
    /// Returns the cursor that leads on from the last row that was looked at.
    pub(super) fn next(&self) -> Option<Cursor> {
        self.last
            .as_deref()
            .filter(|_| !self.complete)
            .map(Cursor::from)
    }
}

impl Search<'_> {
    /// Looks for the rows. Begins after the row `after`; without `after`, at the first row.
    pub(super) async fn run<C: ConnectionLike>(
        &self,
        conn: &mut C,
        keys: &Keys,
        after: Option<&str>,
    ) -> Result<Found, ControlError> {
        const WHAT: &str = "lua/operator/of_object.lua";
        let (command, begin) = if self.newest {
            ("XREVRANGE", "+")
        } else {
            ("XRANGE", "-")
        };
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(field, bytes_max)| format!("{field}:{bytes_max}"))
            .collect();
        let fields = fields.join(" ");
        let mut from = after.map_or_else(|| begin.to_owned(), reply::behind);
        let mut found = Found::default();
        while found.looked < self.looked_max && found.rows.len() < self.found_max {
            let (count, most) = (
                PER_CALL.min(self.looked_max - found.looked),
                self.found_max - found.rows.len(),
            );
            let mut ask = wire::OF_OBJECT.invoke();
            ask.key(self.stream)
                .arg(keys.prefix())
                .arg(self.object)
                .arg(command)
                .arg(&from);
            ask.arg(format!("{count} {most}")).arg(&fields);
            let answer: Value = match ask.invoke_async(conn).await {
                Ok(answer) => answer,
                Err(error) if error.to_string().contains("WRONGTYPE") => {
                    return Ok(Found {
                        complete: true,
                        wrong_type: Some(ControlError::redis(WHAT)(error)),
                        ..found
                    });
                }
                Err(error) => return Err(ControlError::redis(WHAT)(error)),
            };
            let items = reply::after("of_object", answer)
                .map_err(|answer| ControlError::reply(WHAT, answer))?;
            let unknown = || ControlError::reply(WHAT, "it is not a count, an id and rows");
            let (looked, last, is_cut, rows) = page(items).ok_or_else(unknown)?;
            found.looked += looked;
            found.rows.extend(rows);
            if looked > 0 {
                from = reply::behind(&last);
                found.last = Some(last);
            }
            if !is_cut && looked < count && found.rows.len() < self.found_max {
                return Ok(Found {
                    complete: true,
                    ..found
                });
            }
            if is_cut && self.ends_by_bytes {
                break;
            }
        }
        Ok(found)
    }
}

fn page(items: Vec<Value>) -> Option<(u64, String, bool, Vec<Row>)> {
    let mut items = items.into_iter();
    let (looked, last) = (reply::number(&items.next()?)?, reply::text(&items.next()?)?);
    let is_cut = reply::number(&items.next()?)? > 0;
    Some((looked, last, is_cut, items.map(row).collect::<Option<_>>()?))
}

fn row(item: Value) -> Option<Row> {
    let mut items = reply::array(item)?.into_iter();
    let id = reply::text(&items.next()?)?;
    let fields: Vec<Field> = items.map(field).collect::<Option<_>>()?;
    Some(Row {
        id,
        fields: fields.into_iter(),
    })
}

fn field(item: Value) -> Option<Field> {
    match item {
        Value::Nil => Some(Field::default()),
        Value::Array(pair) => {
            let [value, whole_bytes] = <[Value; 2]>::try_from(pair).ok()?;
            Some(Field {
                value: Some(reply::bytes(&value)?),
                whole_bytes: Some(reply::number(&whole_bytes)?),
            })
        }
        value => Some(Field {
            value: Some(reply::bytes(&value)?),
            whole_bytes: None,
        }),
    }
}
