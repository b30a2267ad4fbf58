//! Names of fields as other interfaces spell them: `job_id` for the wire's `JobId`.
//!
//! Only names of fields change, never those that users chose: of files, or of variables.

use std::hash::{BuildHasher, RandomState};

use gapless_core::job::JobId;
use serde_json::{Map, Value};

use crate::wire::{JobRequest, RequestError};

/// Fields whose members are named by users.
const FREE: [&str; 2] = ["Files", "Env"];

/// The same with names like `job_id`.
#[must_use]
pub fn snake(value: Value) -> Value {
    renamed(value, &|name| {
        let mut snake = String::with_capacity(name.len() + 4);
        for (at, letter) in name.char_indices() {
            if letter.is_ascii_uppercase() && at > 0 {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        snake
    })
}

/// The same with names like `JobId`. Names that are spelt so already stay.
#[must_use]
pub fn pascal(value: Value) -> Value {
    renamed(value, &|name| {
        let words = name.split('_').map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        });
        words.collect()
    })
}

fn renamed(value: Value, name: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| renamed(item, name)).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(old, member)| {
                let new = name(&old);
                let free = FREE.iter().any(|free| free.eq_ignore_ascii_case(&new));
                (new, if free { member } else { renamed(member, name) })
            });
            Value::Object(members.collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// A request as people write it: fields by either spelling, and none that is not known.
///
/// # Errors
/// Says what is wrong with it.
pub fn request(given: Value) -> Result<JobRequest, RequestError> {
    let Value::Object(given) = pascal(given) else {
        return Err(RequestError::Json("it is not an object".to_owned()));
    };
    // `exec` and `id` are what one would write by hand.
    let short = [("Exec", "ExecName"), ("Id", "JobId"), ("Client", "ClientId")];
    let mut fields: Map<String, Value> = given;
    for (name, full) in short {
        if let Some(value) = fields.remove(name) {
            fields.insert(full.to_owned(), value);
        }
    }
    for required in ["JobId", "ClientId"] {
        fields.entry(required).or_insert_with(|| Value::String(String::new()));
    }
    let request: JobRequest = serde_json::from_value(Value::Object(fields.clone()))
        .map_err(|error| RequestError::Json(error.to_string()))?;
    // A name with a mistake in it must not be a job without that wish.
    let known = serde_json::to_value(&request).expect("a request is plain data");
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    let unknown =
        fields.iter().find(|(name, value)| known.get(*name).is_none() && !is_nothing(value));
    match unknown {
        Some((name, _)) => Err(RequestError::Json(format!("there is no field {name}"))),
        None => Ok(request),
    }
}

/// An id for a new job: a random UUID.
#[must_use]
pub fn new_id() -> JobId {
    let random = || u128::from(RandomState::new().hash_one(std::process::id()));
    let bits = (random() << 64) | random();
    // Version 4 and the variant of RFC 9562, so that other programs see what it is.
    let version = 0xf_u128 << 76;
    let variant = 0x3_u128 << 62;
    JobId((bits & !(version | variant)) | (0x4 << 76) | (0x2 << 62))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_fields_change_and_names_of_users_stay() {
        let wire = json!({ "JobId": "x", "Files": { "My_File": "" }, "Jobs": [{ "RunMs": 1 }] });
        let shown = snake(wire.clone());
        assert_eq!(shown["job_id"], "x");
        assert_eq!(shown["files"]["My_File"], "");
        assert_eq!(shown["jobs"][0]["run_ms"], 1);
        assert_eq!(pascal(shown), wire);
        assert_eq!(pascal(wire.clone()), wire);
    }

    #[test]
    fn a_request_is_read_by_either_spelling_and_a_misspelt_field_is_refused() {
        let read = request(json!({ "exec": "calc", "args": ["1"], "priority": 7 })).expect("fine");
        assert_eq!((&*read.exec_name, read.priority), ("calc", Some(7)));
        let read = request(json!({ "ExecName": "calc", "JobId": "1" })).expect("fine");
        assert_eq!((&*read.exec_name, &*read.job_id), ("calc", "1"));
        for wrong in [json!({ "exec": "calc", "priorty": 7 }), json!([]), json!({ "args": [] })] {
            assert!(request(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
