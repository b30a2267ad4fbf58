//! House rules for pages: decisions are numbered without holes, requirements exist.
//!
//! A requirement is named by its letter and number (`D10`), in the prose of a page, in a
//! comment of a test, or at the beginning of a test's name (`fn d10_a_hole_is_told`). What
//! stands in code spans, code blocks and string literals is not looked at: there `C3` may
//! be a byte.

use crate::finding::Finding;
use crate::source::{Source, is_test_file};

/// How many requirements each letter has, numbered from 1.
const REQUIREMENTS: &[(char, u32)] =
    &[('A', 14), ('B', 10), ('C', 9), ('D', 11), ('E', 10), ('F', 5)];

/// Whether the files of `docs/adr` (names only) are numbered 0001, 0002 … without holes.
pub(crate) fn decisions(folder: &str, names: &[String]) -> Vec<Finding> {
    const RULE: &str = "adr";
    let mut findings = Vec::new();
    let mut numbered: Vec<(u32, &str)> = Vec::new();
    for name in names.iter().filter(|name| *name != "README.md") {
        match decision_number(name) {
            Some(number) => numbered.push((number, name)),
            None => {
                let what = "is called like `0001-a-short-title.md`";
                findings.push(Finding::whole_file(&format!("{folder}/{name}"), RULE, what));
            }
        }
    }
    numbered.sort_unstable();
    for (index, (number, name)) in numbered.iter().enumerate() {
        let expected = u32::try_from(index + 1).unwrap_or(u32::MAX);
        if *number != expected {
            let what = format!("has number {number:04} where {expected:04} comes next");
            findings.push(Finding::whole_file(&format!("{folder}/{name}"), RULE, what));
            break;
        }
    }
    findings
}

fn decision_number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let well_formed =
        number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()) && !title.is_empty();
    if well_formed { number.parse().ok() } else { None }
}

/// Requirements named in a page that do not exist.
pub(crate) fn requirements_of_page(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        findings.extend(unknown(path, number, &line));
    }
    findings
}

/// Requirements named in the comments and names of tests that do not exist.
pub(crate) fn requirements_of_test(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::parse(text);
    let whole_file = is_test_file(path);
    let counts = |line: usize| whole_file || source.is_test(line);
    let mut findings = Vec::new();
    for (number, line) in source.comment_lines().filter(|(number, _)| counts(*number)) {
        findings.extend(unknown(path, number, &without_code_spans(line)));
    }
    for (number, line) in source.code_lines().filter(|(number, _)| counts(*number)) {
        let named = test_name(line).and_then(requirement_of_name);
        findings.extend(
            named.filter(|named| !exists(named)).map(|named| missing(path, number, &named)),
        );
    }
    findings
}

/// The lines of a page that are neither in a code block nor in a code span, numbered from 1.
pub(crate) fn prose(text: &str) -> Vec<(usize, String)> {
    let mut in_block = false;
    let mut kept = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            kept.push((index + 1, without_code_spans(line)));
        }
    }
    kept
}

/// Cuts out what stands between backticks.
fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

fn unknown(path: &str, number: usize, line: &str) -> Vec<Finding> {
    let named = line
        .split(|sign: char| !(sign.is_alphanumeric() || sign == '_'))
        .filter(|word| is_requirement(word));
    named.filter(|word| !exists(word)).map(|word| missing(path, number, word)).collect()
}

fn missing(path: &str, number: usize, named: &str) -> Finding {
    Finding::at(path, number, "requirement", format!("there is no requirement {named}"))
}

/// Whether a word looks like a requirement: a letter that has some, then one or two digits.
fn is_requirement(word: &str) -> bool {
    let mut signs = word.chars();
    let letter =
        signs.next().is_some_and(|letter| REQUIREMENTS.iter().any(|(known, _)| *known == letter));
    let digits = signs.as_str();
    letter && matches!(digits.len(), 1 | 2) && digits.bytes().all(|b| b.is_ascii_digit())
}

fn exists(word: &str) -> bool {
    let known = |(letter, count): &(char, u32)| {
        let digits = word.strip_prefix(*letter).filter(|digits| !digits.starts_with('0'));
        digits.and_then(|digits| digits.parse().ok()).is_some_and(|number: u32| number <= *count)
    };
    REQUIREMENTS.iter().any(known)
}

fn test_name(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("fn ")?;
    after.split('(').next()
}

/// `d10_a_hole_is_told` names D10.
fn requirement_of_name(name: &str) -> Option<String> {
    let (first, _) = name.split_once('_')?;
    let word = first.to_ascii_uppercase();
    (first.starts_with(|letter: char| letter.is_ascii_lowercase()) && is_requirement(&word))
        .then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn decisions_in_a_row_are_accepted() {
        assert_eq!(decisions("docs/adr", &names(&[])), []);
        let row = names(&["README.md", "0002-b.md", "0001-a.md", "0003-c.md"]);
        assert_eq!(decisions("docs/adr", &row), []);
    }

    #[test]
    fn a_hole_a_double_and_a_nameless_decision_are_found() {
        for wrong in [
            names(&["0001-a.md", "0003-c.md"]),
            names(&["0002-b.md"]),
            names(&["0001-a.md", "0001-b.md"]),
            names(&["0001-a.md", "notes.md"]),
            names(&["1-a.md"]),
            names(&["0001-a.txt"]),
        ] {
            assert_eq!(decisions("docs/adr", &wrong).len(), 1, "{wrong:?}");
        }
    }

    #[test]
    fn a_page_names_only_requirements_that_exist() {
        for known in [
            "As D10 says, no hole.",
            "A1 to A14",
            "(F5)",
            "`C99`",
            "```\nE99\n```",
            "ABC12",
            "F2F",
            "D100",
        ] {
            assert_eq!(requirements_of_page("docs/a.md", known), [], "{known}");
        }
        for wrong in ["one\nAs D12 says", "one\n(F6)", "one\nA15, A1", "one\nC0", "```\n```\nB11"] {
            let findings = requirements_of_page("docs/a.md", wrong);
            assert_eq!(findings.len(), 1, "{wrong}");
            assert!(findings[0].line > 1);
        }
    }

    #[test]
    fn a_test_names_only_requirements_that_exist() {
        let path = "crates/broker/tests/follow.rs";
        assert_eq!(requirements_of_test(path, "/// D10.\nfn d10_a_hole_is_told() {}"), []);
        assert_eq!(requirements_of_test(path, "let byte = \"C99\"; fn dead_letter() {}"), []);
        assert_eq!(requirements_of_test(path, "/// D12.\nfn a_hole_is_told() {}").len(), 1);
        assert_eq!(requirements_of_test(path, "fn d12_a_hole_is_told() {}").len(), 1);
    }

    #[test]
    fn product_code_beside_tests_may_name_what_it_likes() {
        let text = "// F9\n#[cfg(test)]\nmod tests {\n    // F9\n}\n";
        let findings = requirements_of_test("crates/core/src/topic.rs", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 4);
    }
}
