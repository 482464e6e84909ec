//! Removes secrets from values of the configuration, so that these can be shown.

/// If the name of a query parameter contains one of these words, its value is secret.
const SECRET: [&str; 6] = ["pass", "token", "secret", "key", "sig", "auth"];

/// Returns a URL without its password, and without the values of query parameters that may be
/// secret. Also removes the password in a text such as `user:password@host`. Any other text stays
/// as it is.
pub fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return without_credentials("", text);
    };
    let (before, query) = rest
        .split_once('?')
        .map_or((rest, None), |(before, query)| (before, Some(query)));
    let shown = without_credentials(&format!("{scheme}://"), before);
    let Some(query) = query else { return shown };
    let parameter = |part: &str| match part.split_once('=') {
        Some((name, _))
            if SECRET
                .iter()
                .any(|word| name.to_ascii_lowercase().contains(word)) =>
        {
            format!("{name}=***")
        }
        _ => part.to_owned(),
    };
    let parameters: Vec<String> = query.split('&').map(parameter).collect();
    format!("{shown}?{}", parameters.join("&"))
}

/// Returns a URL without the password in front of the host. `scheme`: the URL up to `://`, or
/// empty. `rest`: the text after it. The password ends at the last `@`, because it may have any
/// characters.
fn without_credentials(scheme: &str, rest: &str) -> String {
    match rest.rsplit_once('@') {
        Some((credentials, host)) if !scheme.is_empty() || !credentials.contains('/') => {
            match credentials.split_once(':') {
                Some((user, _)) => format!("{scheme}{user}:***@{host}"),
                None => format!("{scheme}{credentials}@{host}"),
            }
        }
        _ => format!("{scheme}{rest}"),
    }
}

/// Returns a header, `NAME: VALUE`, without its value.
pub fn without_value(header: &str) -> String {
    header
        .split_once(':')
        .map_or_else(|| "***".to_owned(), |(name, _)| format!("{name}: ***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        for (text, shown) in [
            ("redis://u:p@ss@host:1/2", "redis://u:***@host:1/2"),
            ("redis://:secret@host", "redis://:***@host"),
            ("redis://user@host", "redis://user@host"),
            ("rediss://host:1", "rediss://host:1"),
            ("u:p@host", "u:***@host"),
            (
                "redis+unix:///run/redis.sock?db=1&pass=x",
                "redis+unix:///run/redis.sock?db=1&pass=***",
            ),
            (
                "https://u:p@host/x?batch=100&Api_Token=x",
                "https://u:***@host/x?batch=100&Api_Token=***",
            ),
            ("file:/var/lib/a@b", "file:/var/lib/a@b"),
            ("64", "64"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
        assert_eq!(
            without_value("Authorization: Bearer x"),
            "Authorization: ***"
        );
        assert_eq!(without_value("x"), "***");
    }
}
