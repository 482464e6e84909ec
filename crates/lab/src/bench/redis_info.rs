//! The processor time and memory of Redis, from INFO.

use redis::aio::MultiplexedConnection;

use super::place::lost;

/// A reply to INFO.
pub(super) struct Info(String);

impl Info {
    pub(super) async fn ask(conn: &MultiplexedConnection) -> anyhow::Result<Self> {
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("cpu").arg("memory");
        Ok(Self(
            info.query_async(&mut conn.clone())
                .await
                .map_err(lost("INFO"))?,
        ))
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.split_once(':').filter(|(name, _)| *name == field))
            .map(|(_, value)| value.trim())
    }

    pub(super) fn number(&self, field: &str) -> Option<f64> {
        self.text(field)?.parse().ok()
    }

    /// Returns the version of the server: of Valkey, or else of Redis.
    pub(super) fn version(&self) -> &str {
        self.text("valkey_version")
            .or_else(|| self.text("redis_version"))
            .unwrap_or("?")
    }

    /// Returns the processor time of Redis' main thread, which runs the commands, in seconds. If
    /// INFO does not have it, returns the processor time of the whole process.
    pub(super) fn cpu_s(&self) -> f64 {
        let both = |user: &str, sys: &str| Some(self.number(user)? + self.number(sys)?);
        both("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
            .or_else(|| both("used_cpu_user", "used_cpu_sys"))
            .unwrap_or(f64::NAN)
    }

    /// Returns the memory that Redis uses, in bytes. It does not include the buffers of connections
    /// and the texts of scripts.
    pub(super) fn memory_bytes(&self) -> f64 {
        let beside = ["mem_clients_normal", "used_memory_scripts_eval"]
            .map(|field| self.number(field).unwrap_or(0.0));
        self.number("used_memory").unwrap_or(f64::NAN) - beside.iter().sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.5\r\nused_memory:1000\r\nmem_clients_normal:100\r\nredis_version:7.0.15\r\n";
        let mut info = Info(text.to_owned());
        assert_eq!(
            (info.cpu_s(), info.memory_bytes(), info.version()),
            (4.0, 900.0, "7.0.15")
        );
        info.0 += "used_cpu_sys_main_thread:0.5\r\nused_cpu_user_main_thread:0.25\r\n";
        assert_eq!(info.cpu_s(), 0.75);
    }
}
