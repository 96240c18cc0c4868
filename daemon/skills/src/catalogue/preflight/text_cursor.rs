//! Position in a text that is read once, from its beginning to its end, with the number of the line. Pure.

/// Position in a text. Every reader of preflight only moves forward, which keeps its work linear.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextCursor<'a> {
    rest: &'a str,
    /// Number of the current line, from 1.
    pub(super) line: usize,
}

impl<'a> TextCursor<'a> {
    pub(super) fn new(text: &'a str, line: usize) -> Self {
        Self { rest: text, line }
    }

    /// Returns the text that follows.
    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    /// Returns the next character without taking it.
    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Takes the next character.
    pub(super) fn take(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.rest = self.rest.get(char.len_utf8()..).unwrap_or_default();
        self.line += usize::from(char == '\n');
        Some(char)
    }

    /// Takes a text if it follows.
    pub(super) fn take_text(&mut self, text: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(text) else {
            return false;
        };
        self.line += text.matches('\n').count();
        self.rest = rest;
        true
    }

    /// Takes characters as long as they are wanted, and returns them.
    pub(super) fn take_while(&mut self, is_wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|char| !is_wanted(char));
        self.take_bytes(end.unwrap_or(self.rest.len()))
    }

    /// Takes everything up to the end of the line, and returns it without the line break.
    pub(super) fn take_line(&mut self) -> &'a str {
        let line = self.take_while(|char| char != '\n');
        self.take();
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// Takes everything up to a text and the text itself; all the rest if the text does not follow.
    pub(super) fn take_past(&mut self, text: &str) -> &'a str {
        match self.rest.find(text) {
            Some(at) => {
                let taken = self.take_bytes(at);
                self.take_text(text);
                taken
            }
            None => self.take_bytes(self.rest.len()),
        }
    }

    fn take_bytes(&mut self, count: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(count).unwrap_or((self.rest, ""));
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }
}
