// The commands of recurc.
#pragma once

#include "llvm/ADT/ArrayRef.h"

namespace recur {
class Session;

/// Runs recurc with a command line (without the program's name). Returns the exit code: 0, 1 for an error, 2
/// for a wrong command line.
int runCommandLine(llvm::ArrayRef<const char *> arguments);

// One command each. Errors go to the session's diagnostics; the exit code follows from them unless a command
// says otherwise (diff: 1 for different rules).
int compileCommand(Session &session);
int checkCommand(Session &session);
int runCommand(Session &session);
int verifyCommand(Session &session);
int benchCommand(Session &session);
int explainCommand(Session &session);
int diffCommand(Session &first);
} // namespace recur
