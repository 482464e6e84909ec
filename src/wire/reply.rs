//! Reads the reply of a script, element by element.

use std::time::Duration;

use redis::Value;

use super::error::ScriptError;
use crate::escape;

/// The elements of a reply that are not read yet.
pub(crate) struct Reply {
    script: &'static str,
    values: std::vec::IntoIter<Value>,
}

impl Reply {
    /// Returns a reader of the reply's elements. A reply that is no array is an error.
    pub(crate) fn of(script: &'static str, value: Value) -> Result<Self, ScriptError> {
        match value {
            Value::Array(values) => Ok(Self {
                script,
                values: values.into_iter(),
            }),
            other => Err(ScriptError::Protocol {
                script,
                what: format!("an array was expected, not {other:?}"),
            }),
        }
    }

    /// Returns the error [`ScriptError::Protocol`] for this reply. `what` describes the mistake.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> ScriptError {
        ScriptError::Protocol {
            script: self.script,
            what: what.into(),
        }
    }

    /// Returns the next element, unread.
    pub(crate) fn value(&mut self) -> Result<Value, ScriptError> {
        self.values
            .next()
            .ok_or_else(|| self.wrong("it is too short"))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, ScriptError> {
        match self.value()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            other => Err(self.wrong(format!("a string was expected, not {other:?}"))),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, ScriptError> {
        String::from_utf8(self.bytes()?).map_err(|error| self.wrong(error.to_string()))
    }

    /// Returns the next element as text for people. Bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn lossy(&mut self) -> Result<String, ScriptError> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    /// Returns the next element as text for people. It may have names, so it is escaped as a name: a
    /// name in it can be copied into a command.
    pub(crate) fn escaped(&mut self) -> Result<String, ScriptError> {
        Ok(escape::name(&self.bytes()?).into_owned())
    }

    pub(crate) fn int(&mut self) -> Result<i64, ScriptError> {
        match self.value()? {
            Value::Int(n) => Ok(n),
            other => Err(self.wrong(format!("a whole number was expected, not {other:?}"))),
        }
    }

    pub(crate) fn count(&mut self) -> Result<u64, ScriptError> {
        let n = self.int()?;
        u64::try_from(n).map_err(|_| self.wrong(format!("a count was expected, not {n}")))
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self) -> Result<T, ScriptError> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| self.wrong(format!("a number was expected, not {text:?}")))
    }

    /// Returns the next element as an array; nil counts as an empty array.
    pub(crate) fn array(&mut self) -> Result<Reply, ScriptError> {
        let value = match self.value()? {
            Value::Nil => Value::Array(Vec::new()),
            value => value,
        };
        Self::of(self.script, value)
    }

    /// Returns the next element as pairs of an escaped name and a text for people.
    pub(crate) fn texts(&mut self) -> Result<Vec<(String, String)>, ScriptError> {
        let mut pairs = self.array()?;
        let mut texts = Vec::new();
        while pairs.len() > 0 {
            texts.push((escape::name(&pairs.bytes()?).into_owned(), pairs.lossy()?));
        }
        Ok(texts)
    }

    /// Returns the elements left, unread.
    pub(crate) fn rest(self) -> Vec<Value> {
        self.values.collect()
    }

    /// Returns the number of elements left.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// Returns a duration in whole milliseconds, as scripts expect it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
