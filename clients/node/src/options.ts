/** Checks that options have only known members, so that a misspelt one is not ignored. */
import { quoted } from "./escape.js";

/** The names of the known members. Each list is beside its interface, and `satisfies` keeps it complete. */
type Known = Readonly<Record<string, true>>;

/**
 * Checks the options of a call.
 *
 * @param reasons Advice for members that belong to other calls.
 * @throws {TypeError} if a member is unknown, or the options are no object.
 */
export function checkOptions(
    call: string,
    options: object,
    known: Known,
    reasons: Readonly<Record<string, string>> = {},
): void {
    if (typeof options !== "object" || options === null) {
        const type = options === null ? "null" : `of type ${typeof options}`;
        throw new TypeError(`${call}: the options are an object, not ${type}`);
    }
    // Own members only: an AbortController may be the options of a wait.
    for (const name of Object.keys(options)) {
        if (known[name] !== true) {
            throw unknown(call, name, Object.keys(known), reasons);
        }
    }
}

/** Checks that a call without options gets none. */
export function checkNoOptions(call: string, options: unknown, reason: string): void {
    if (options !== undefined) {
        throw new TypeError(`${call} takes no options: ${reason}`);
    }
}

function unknown(
    call: string,
    name: string,
    known: readonly string[],
    reasons: Readonly<Record<string, string>>,
): TypeError {
    const near = known.find((one) => isNear(name, one));
    const list = `the options are ${known.join(", ")}`;
    const advice = Object.hasOwn(reasons, name)
        ? reasons[name]
        : near === undefined
          ? list
          : `did you mean ${quoted(near)}?`;
    return new TypeError(`${call}: unknown option ${quoted(name)}; ${advice}`);
}

/** Returns whether a name is probably a misspelt form of the known one. */
function isNear(name: string, known: string): boolean {
    const plain = (text: string) => text.toLowerCase().replace(/[_-]/g, "");
    const [a, b] = [plain(name), plain(known)];
    return Math.abs(a.length - b.length) < 3 && edits(a, b) <= Math.floor(b.length / 3 + 0.5);
}

/** Returns the number of inserted, removed, changed and swapped characters between two short texts. */
function edits(a: string, b: string): number {
    const rows = [Array.from({ length: b.length + 1 }, (_, at) => at)];
    const cell = (row: number, at: number) => rows[row]?.[at] ?? Number.POSITIVE_INFINITY;
    for (let row = 1; row <= a.length; row += 1) {
        const counts = [row];
        rows.push(counts);
        for (let at = 1; at <= b.length; at += 1) {
            const change = a[row - 1] === b[at - 1] ? 0 : 1;
            const isSwap = a[row - 1] === b[at - 2] && a[row - 2] === b[at - 1];
            counts[at] = Math.min(
                cell(row - 1, at) + 1,
                cell(row, at - 1) + 1,
                cell(row - 1, at - 1) + change,
                isSwap ? cell(row - 2, at - 2) + 1 : Number.POSITIVE_INFINITY,
            );
        }
    }
    return cell(a.length, b.length);
}
