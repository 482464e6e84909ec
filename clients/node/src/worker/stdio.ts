/** Takes standard input and output for the protocol, so that nothing else of this program uses them. */
import { closeSync, constants, fstatSync, openSync } from "node:fs";

const { O_APPEND, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

/**
 * Opens the pipes of standard input and output anew, the output for two threads, and puts other files in their places:
 * a `console.log`, and a program that a handler starts, write to the log of the worker instead.
 *
 * @throws {TypeError} if standard input and output are no pipes.
 */
export function takeStdio(): { input: number; output: number; direct: number } {
    if (![0, 1].every((fd) => fstatSync(fd).isFIFO())) {
        throw new TypeError(
            "serve() is for a program that a worker starts: seriatim worker --sink 'exec:node …'; to start a worker, use run()",
        );
    }
    const input = openSync("/dev/fd/0", O_RDONLY | O_NONBLOCK);
    const output = openSync("/dev/fd/1", O_WRONLY | O_NONBLOCK);
    const direct = openSync("/dev/fd/1", O_WRONLY | O_NONBLOCK);
    replace(0, () => openSync("/dev/null", O_RDONLY));
    replace(1, () => {
        try {
            return openSync("/dev/fd/2", O_WRONLY | O_APPEND);
        } catch {
            // Standard error may be a socket, which cannot be opened.
            return openSync("/dev/null", O_WRONLY);
        }
    });
    return { input, output, direct };
}

/** Puts a file in the place of another one. The system gives the lowest free number to the next file. */
function replace(fd: number, open: () => number): void {
    closeSync(fd);
    const opened = open();
    if (opened !== fd) {
        throw new Error(
            `the file ${fd} cannot be replaced: another thread has opened a file; call serve() earlier`,
        );
    }
}
