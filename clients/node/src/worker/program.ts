/** Finds the program `seriatim`. */
import { accessSync, closeSync, constants, openSync, readSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, dirname, isAbsolute, join } from "node:path";

/** The program `seriatim` is missing, or is none that can be started. */
export class ProgramMissing extends Error {
    override readonly name = "ProgramMissing";
}

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
