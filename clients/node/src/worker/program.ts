/** Finds the program `seriatim`. */
import { spawnSync } from "node:child_process";
import { accessSync, closeSync, constants, openSync, readSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { constants as os } from "node:os";
import { delimiter, dirname, isAbsolute, join } from "node:path";

/** The program `seriatim` is missing, or is none that can be started. */
export class ProgramMissing extends Error {
    override readonly name = "ProgramMissing";
}

/** The exit code of the program for a wrong command line. */
export const USAGE_CODE = 2;

const REMEDY =
    "install the program seriatim (`cargo install --path crates/cli`), and put it on PATH or its path into SERIATIM_BIN";

/** Returns the path of the program: from the variable SERIATIM_BIN, from an optional package, or from PATH. */
export function findProgram(given?: string, env: NodeJS.ProcessEnv = process.env): string {
    const named = given ?? (env.SERIATIM_BIN || undefined);
    if (named !== undefined) {
        if (!isProgram(named)) {
            const source = given === undefined ? "SERIATIM_BIN" : "the option program";
            throw new ProgramMissing(
                `${source} names ${named}, which is no program that can be started; ${REMEDY}`,
            );
        }
        return named;
    }
    const packaged = `@seriatim/${process.platform}-${process.arch}`;
    try {
        const found = createRequire(import.meta.url).resolve(`${packaged}/package.json`);
        const program = join(dirname(found), "bin", "seriatim");
        if (isProgram(program)) {
            return program;
        }
    } catch {
        // The package is optional.
    }
    for (const folder of (env.PATH ?? "").split(delimiter)) {
        const program = join(folder, "seriatim");
        if (isAbsolute(folder) && isProgram(program) && !isCommand(program)) {
            return program;
        }
    }
    throw new ProgramMissing(
        `there is no program seriatim: SERIATIM_BIN is not set, the package ${packaged} is not installed, and no folder of PATH has it; ${REMEDY}`,
    );
}

function isProgram(path: string): boolean {
    try {
        accessSync(path, constants.X_OK);
        return statSync(path).isFile();
    } catch {
        return false;
    }
}

/** Returns whether this is the command of this package, or a script that runs it: it would only look again. */
function isCommand(path: string): boolean {
    const head = Buffer.alloc(8192);
    const file = openSync(path, constants.O_RDONLY);
    try {
        const length = readSync(file, head);
        return head.subarray(0, length).includes("seriatim/bin/seriatim.js");
    } finally {
        closeSync(file);
    }
}

/** Returns how a program has ended that was killed by a signal. */
export function killedBy(signal: string): string {
    const number = os.signals[signal as NodeJS.Signals];
    const causes = signal === "SIGKILL" ? "e.g. out of memory, or an operator" : signal;
    return `was killed by signal ${number} (${causes})`;
}

/**
 * Returns the error of a program that has refused its options, because its standard error is that of this process.
 * To have it, starts the program once more: it refuses the same options again, before it does anything.
 */
export function usageError(
    program: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv,
): string | undefined {
    const again = spawnSync(program, args, { env, stdio: ["ignore", "ignore", "pipe"], timeout: 5000 });
    if (again.status !== USAGE_CODE) {
        return undefined;
    }
    const lines = again.stderr
        .toString()
        .split("\n")
        .filter((line) => line.trim() !== "");
    // Behind an error of the command line comes a hint at the help.
    const error = lines.find((line) => line.startsWith("error: ")) ?? lines.at(-1);
    return error?.replace(/^(error|seriatim): /, "");
}
