#!/usr/bin/env node
// seriatim/bin/seriatim.js: the command `seriatim`, which runs the program as a child and ends as the program does.
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { findProgram } from "../dist/worker/program.js";

function fail(error) {
    console.error(`seriatim: ${error.message}`);
    process.exit(1);
}

let program;
try {
    program = findProgram();
} catch (error) {
    fail(error);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", fail);
// A terminal sends these to the child, too. A second signal would make the program stop at once.
for (const signal of ["SIGINT", "SIGHUP", "SIGQUIT"]) {
    process.on(signal, () => undefined);
}
process.on("SIGTERM", () => child.kill("SIGTERM"));
child.on("exit", (code, signal) => {
    process.exit(code ?? 128 + constants.signals[signal]);
});
