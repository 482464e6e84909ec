/**
 * Finds the texts of members in a JSON text, byte for byte. `JSON.parse` loses digits of large numbers.
 *
 * The text must be valid JSON, e.g. because `JSON.parse` has accepted it. Then a value is skipped without a parser:
 * a string ends at the first quote that no backslash takes, and an object or a list ends at the bracket that closes
 * it, outside of strings.
 */

const SPACE = /[ \t\r\n]*/y;
const SCALAR = /[^,\]} \t\r\n]*/y;
const MARK = /["{}[\]]/g;

/** Returns the position behind blanks. */
function skipSpace(text: string, at: number): number {
    SPACE.lastIndex = at;
    SPACE.test(text);
    return SPACE.lastIndex;
}

/** Returns the position behind the string that begins at `at`. */
function skipString(text: string, at: number): number {
    for (let quote = text.indexOf('"', at + 1); quote >= 0; quote = text.indexOf('"', quote + 1)) {
        let backslashes = 0;
        while (text[quote - 1 - backslashes] === "\\") {
            backslashes += 1;
        }
        if (backslashes % 2 === 0) {
            return quote + 1;
        }
    }
    throw new SyntaxError("a string has no end");
}

/** Returns the position behind the value that begins at `at`. */
function skipValue(text: string, at: number): number {
    const first = text[at];
    if (first === '"') {
        return skipString(text, at);
    }
    if (first !== "{" && first !== "[") {
        SCALAR.lastIndex = at;
        SCALAR.test(text);
        return SCALAR.lastIndex;
    }
    let depth = 0;
    MARK.lastIndex = at;
    for (let mark = MARK.exec(text); mark !== null; mark = MARK.exec(text)) {
        if (mark[0] === '"') {
            MARK.lastIndex = skipString(text, mark.index);
        } else {
            depth += mark[0] === "{" || mark[0] === "[" ? 1 : -1;
            if (depth === 0) {
                return mark.index + 1;
            }
        }
    }
    throw new SyntaxError("a bracket is not closed");
}

/** Returns the text of a member of the object that begins at `at`. Of two members with this name, the last counts. */
function member(text: string, at: number, name: string): { start: number; end: number } | undefined {
    let found: { start: number; end: number } | undefined;
    let position = skipSpace(text, at + 1);
    while (text[position] === '"') {
        const nameEnd = skipString(text, position);
        const isIt = JSON.parse(text.slice(position, nameEnd)) === name;
        // Behind the name are a colon and blanks.
        const start = skipSpace(text, skipSpace(text, nameEnd) + 1);
        const end = skipValue(text, start);
        found = isIt ? { start, end } : found;
        position = skipSpace(text, end);
        position = text[position] === "," ? skipSpace(text, position + 1) : position;
    }
    return found;
}

/** Returns the texts of the member `event` of each item of the member `events` of the object. */
export function rawEvents(text: string): string[] {
    const events = member(text, skipSpace(text, 0), "events");
    const raw: string[] = [];
    if (events === undefined || text[events.start] !== "[") {
        return raw;
    }
    let position = skipSpace(text, events.start + 1);
    while (position < events.end - 1) {
        const end = skipValue(text, position);
        const event = text[position] === "{" ? member(text, position, "event") : undefined;
        raw.push(event === undefined ? "null" : text.slice(event.start, event.end));
        position = skipSpace(text, end);
        position = text[position] === "," ? skipSpace(text, position + 1) : position;
    }
    return raw;
}
