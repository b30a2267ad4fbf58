//! Rust text taken apart just far enough for the rules: code, comments, and what is test.
//!
//! Code and comments keep the lines and columns they had; what belongs to the other, and the
//! insides of literals, become blanks. So a rule that looks for a word in code is blind to
//! that word in a comment or a string, and this tool can name in strings what it forbids.
//!
//! It is not a parser: macros that build code out of pieces are not seen through.

/// One file, taken apart. The three lists have one element per line.
#[derive(Debug)]
pub(crate) struct Source {
    /// Code without comments and without the insides of literals.
    pub(crate) code: Vec<String>,
    /// Comments alone.
    pub(crate) comments: Vec<String>,
    /// Whether the line lies in an item under `#[cfg(test)]`.
    pub(crate) is_test: Vec<bool>,
}

impl Source {
    pub(crate) fn parse(text: &str) -> Self {
        let (code, comments) = split(text);
        let is_test = test_lines(&code);
        Self { code: lines(&code), comments: lines(&comments), is_test }
    }

    /// Lines of code with their number, counted from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()))
    }

    /// Lines of comment with their number, counted from 1.
    pub(crate) fn comment_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.comments.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()))
    }

    /// Whether the line (counted from 1) is test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.is_test.get(line - 1).copied().unwrap_or(false)
    }
}

/// Whether a path lies in a `tests` folder.
pub(crate) fn in_tests_folder(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/")
}

/// Whether all of a file is test code: it lies in a `tests` folder, or is called `tests.rs`
/// or `topic_tests.rs` beside `topic.rs`.
pub(crate) fn is_test_file(path: &str) -> bool {
    in_tests_folder(path) || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// Whether `word` occurs in `line`, not as a part of a longer name.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    word_ends(line, word).next().is_some()
}

/// Where each occurrence of `word` ends; a part of a longer name is no occurrence.
pub(crate) fn word_ends<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(word).filter_map(move |(start, _)| {
        let end = start + word.len();
        let opens = word.starts_with(is_name) && line[..start].ends_with(is_name);
        let goes_on = word.ends_with(is_name) && line[end..].starts_with(is_name);
        (!opens && !goes_on).then_some(end)
    })
}

fn is_name(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Code and comments, each as long as the text, with blanks for the other.
fn split(text: &str) -> (String, String) {
    let mut cutter =
        Cutter { rest: text, code: String::new(), comments: String::new(), previous: ' ' };
    while let Some(sign) = cutter.rest.chars().next() {
        if cutter.rest.starts_with("//") {
            cutter.comment(line_comment_bytes(cutter.rest));
        } else if cutter.rest.starts_with("/*") {
            cutter.comment(block_comment_bytes(cutter.rest));
        } else if let Some(bytes) = literal_bytes(cutter.rest, cutter.previous) {
            cutter.literal(bytes);
        } else {
            cutter.code(sign);
        }
    }
    (cutter.code, cutter.comments)
}

struct Cutter<'a> {
    rest: &'a str,
    code: String,
    comments: String,
    /// The sign before `rest`: an `r` that ends a name begins no raw string.
    previous: char,
}

impl Cutter<'_> {
    fn take(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.previous = taken.chars().next_back().unwrap_or(' ');
        taken
    }

    fn code(&mut self, sign: char) {
        self.take(sign.len_utf8());
        self.code.push(sign);
        self.comments.push(blank(sign));
    }

    fn comment(&mut self, bytes: usize) {
        let taken = self.take(bytes).to_owned();
        self.code.extend(taken.chars().map(blank));
        self.comments.push_str(&taken);
    }

    fn literal(&mut self, bytes: usize) {
        let taken = self.take(bytes).to_owned();
        self.comments.extend(taken.chars().map(blank));
        let last = taken.chars().count() - 1;
        for (index, sign) in taken.chars().enumerate() {
            let edge = (index == 0 || index == last) && matches!(sign, '"' | '\'');
            self.code.push(if edge { sign } else { blank(sign) });
        }
    }
}

fn blank(sign: char) -> char {
    if sign == '\n' { '\n' } else { ' ' }
}

fn line_comment_bytes(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// How long the string, byte string or character literal is that begins here, if one does.
fn literal_bytes(text: &str, previous: char) -> Option<usize> {
    let prefix = if is_name(previous) {
        0
    } else {
        text.find(|c| !matches!(c, 'b' | 'c' | 'r')).unwrap_or(0)
    };
    let after = &text[prefix..];
    let raw = prefix > 0 && text[..prefix].ends_with('r');
    if raw {
        let hashes = after.find(|c| c != '#').unwrap_or(0);
        if !after[hashes..].starts_with('"') {
            return None;
        }
        let close = format!("\"{}", "#".repeat(hashes));
        let opened = prefix + hashes + 1;
        return Some(
            text[opened..].find(&close).map_or(text.len(), |end| opened + end + close.len()),
        );
    }
    if after.starts_with('"') {
        return Some(prefix + quoted_bytes(after, '"'));
    }
    (after.starts_with('\'') && is_character(after)).then(|| prefix + quoted_bytes(after, '\''))
}

/// Tells `'a'` and `'\n'` from the lifetime `'a`.
fn is_character(text: &str) -> bool {
    let mut signs = text.chars().skip(1);
    match signs.next() {
        Some('\\') => true,
        Some(_) => signs.next() == Some('\''),
        None => false,
    }
}

fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, sign) in text.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if sign == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// For each line of code, whether it lies in an item under `#[cfg(test)]`.
fn test_lines(code: &str) -> Vec<bool> {
    let mut is_test = vec![false; code.lines().count()];
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let end = item_end(code, start);
        let first = code[..start].matches('\n').count();
        let last = code[..end].matches('\n').count();
        for line in is_test.iter_mut().take(last + 1).skip(first) {
            *line = true;
        }
        from = end;
    }
    is_test
}

/// Where the item that follows the attribute at `start` ends: at its `;` or its last brace.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, sign) in code[start..].char_indices() {
        match sign {
            ';' if depth == 0 => return start + at + 1,
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return start + at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::parse(text).code.join("\n")
    }

    #[test]
    fn comments_are_not_code_and_code_is_no_comment() {
        let source = Source::parse("let a = 1; // word\n/* one /* two */ word */ let b = 2;\n");
        assert_eq!(source.code[0].trim_end(), "let a = 1;");
        assert_eq!(source.code[1].trim(), "let b = 2;");
        assert_eq!(source.comments[0].trim(), "// word");
        assert_eq!(source.comments[1].trim(), "/* one /* two */ word */");
    }

    #[test]
    fn the_insides_of_literals_are_blank() {
        assert_eq!(code(r#"f("word // \" word");"#), r#"f("               ");"#);
        assert_eq!(code("r#\"word\"word\"#; word"), "              ; word");
        assert_eq!(code("b\"word\"; br\"word\"; word").matches("word").count(), 1);
        assert_eq!(code("let c = '\"'; word '\\'' word").matches("word").count(), 2);
    }

    #[test]
    fn lifetimes_and_names_that_end_in_r_begin_no_literal() {
        assert_eq!(code("fn f<'a>(x: &'a str) -> &'a str"), "fn f<'a>(x: &'a str) -> &'a str");
        assert_eq!(code("number\"word\"word").matches("word").count(), 1);
    }

    #[test]
    fn columns_and_lines_stay_where_they_were() {
        let text = "a(\"é\"); // ü\n\"two\nlines\"; b\n";
        let source = Source::parse(text);
        assert_eq!(source.code.len(), text.lines().count());
        assert!(source.code[2].ends_with("; b"));
    }

    #[test]
    fn test_modules_end_at_their_brace() {
        let text = "a\n#[cfg(test)]\nmod tests {\n    fn f() { \"}\" }\n}\nb\n";
        let source = Source::parse(text);
        assert_eq!(source.is_test, [false, true, true, true, true, false]);
    }

    #[test]
    fn a_test_module_in_another_file_is_one_line() {
        let source = Source::parse("#[cfg(test)]\nmod tests;\nfn f() {}\n");
        assert_eq!(source.is_test, [true, true, false]);
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_one() {
        assert!(has_word("x File::open", "File::"));
        assert!(!has_word("LogFile::open", "File::"));
        assert!(!has_word("unsafe_code", "unsafe"));
    }
}
