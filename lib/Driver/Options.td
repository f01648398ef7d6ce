// The options of recurc. Each is listed in the help of the commands whose visibility it has.
include "llvm/Option/OptParser.td"

def Compile : OptionVisibility;
def Check : OptionVisibility;
def Run : OptionVisibility;
def Verify : OptionVisibility;
def Bench : OptionVisibility;
def Explain : OptionVisibility;
def Diff : OptionVisibility;

class In<list<OptionVisibility> commands> { list<OptionVisibility> Visibility = commands; }
class Every : In<[Compile, Check, Run, Verify, Bench, Explain, Diff]>;
class Coded : In<[Compile, Run, Verify, Bench]>;
class Sized : In<[Compile, Run, Verify, Bench, Explain]>;

multiclass Value<string name, string metavar, string help, list<OptionVisibility> commands> {
  let Visibility = commands in {
    def NAME : Joined<["--"], name # "=">, HelpText<help>, MetaVarName<metavar>;
    def NAME # _separate : Separate<["--"], name>, Alias<!cast<Joined>(NAME)>;
  }
}
defvar coded = [Compile, Run, Verify, Bench];
defvar sized = [Compile, Run, Verify, Bench, Explain];
defvar drawn = [Run, Verify, Bench];
defvar shaped = [Run, Verify, Bench, Explain];

def output : JoinedOrSeparate<["-"], "o">, In<[Compile, Explain]>, MetaVarName<"FILE">,
    HelpText<"Write to FILE ('-' is standard output); the header goes beside an object">;
defm emit : Value<"emit", "KIND,..", "What to write: obj,header (default), json, asm, llvm, mlir, recur, ast, tokens",
                  [Compile]>;
defm name : Value<"name", "NAME", "Name of the rule and prefix of its functions (default: the file's)", sized>;
defm bind : Value<"bind", "DIM=SIZE,..", "Sizes of dimensions, and values of constants", sized>;
defm dtype : Value<"dtype", "TYPE|NAME=TYPE,..", "Types of the tensors: f32 (default), bf16, f16; states are f32", sized>;
defm target : Value<"target", "CPU,..", "Machines to compile for, best first at run time (default: native)", sized>;
defm form : Value<"form", "FORM", "auto (default), sequential, chunk; on CPUs sweep, on GPUs scan, roles", coded>;
defm chunk : Value<"chunk", "C", "Tokens in a chunk on the CPU: 16 (default), 32, 64, 128 or 256", coded>;
def opt_level : Joined<["-"], "O">, In<coded>, MetaVarName<"LEVEL">, HelpText<"Optimise: 0, 1, 2 (default) or 3; kernels of GPUs always are">;
def lines : Flag<["-"], "g">, In<[Compile]>, HelpText<"Keep line tables that point into the spec">;

defm until_after : Value<"until-after", "STAGE", "Stop after a stage and print the IR", [Compile]>;
defm print_ir_after : Value<"print-ir-after", "STAGE,..", "Print the IR after stages (or 'all') to standard error",
                            [Compile]>;
def save_temps : Flag<["--", "-"], "save-temps">, In<[Compile]>, HelpText<"Keep the IR after every stage in files beside the output">;
def list_stages : Flag<["--"], "list-stages">, In<[Compile]>, HelpText<"List the stages with what holds after each">;
def list_targets : Flag<["--"], "list-targets">, In<[Compile]>, HelpText<"List the machines that code can be made for">;
def MD : Flag<["-"], "MD">, In<[Compile]>, HelpText<"Write a dependency file for make beside the output">;
def MF : Separate<["-"], "MF">, In<[Compile]>, MetaVarName<"FILE">, HelpText<"Name of the dependency file">;
def MT : Separate<["-"], "MT">, In<[Compile]>, MetaVarName<"TARGET">, HelpText<"Target named in the dependency file">;

defm inputs : Value<"inputs", "DIR", "Read NAME.npy for each input and param, and for states that have one", [Run]>;
defm outputs : Value<"outputs", "DIR", "Write NAME.npy for each output and final state", [Run]>;
defm random : Value<"random", "SEED", "Draw the inputs within their declared ranges", drawn>;
defm tokens : Value<"tokens", "N", "Tokens of a drawn sequence (explain: of a call on a GPU, default 8192)", shaped>;
defm batch : Value<"batch", "N", "Sequences to draw (default 1; bench: for steps, enough that states are not in cache)", shaped>;
defm heads : Value<"heads", "N", "Heads to draw (default 1; explain: 96)", shaped>;
def emulate : Flag<["--"], "emulate">, In<[Run, Verify]>, HelpText<"Run a GPU's code on an emulated one">;
defm processors : Value<"processors", "N", "Processors of the emulated GPU (default: the chip's)", [Run, Verify]>;
def oracle : Flag<["--"], "oracle">, In<[Run]>, HelpText<"Interpret the rule in float64 instead of compiling it">;
def step : Flag<["--"], "step">, In<[Run, Bench]>, HelpText<"Call the one-token function (run: for each token)">;
def forward : Flag<["--"], "forward">, In<[Bench]>, HelpText<"Time the forward function (default: both)">;
defm rounds : Value<"rounds", "N", "Random problems of each kind of inputs (default 1)", [Verify]>;
defm proofs : Value<"proofs", "N", "Random inputs over the prime field (default 20)", [Verify]>;
defm repeat : Value<"repeat", "N", "Timed calls of each (default: enough for a second)", [Bench]>;
defm threads : Value<"threads", "N", "Threads (default: one per core); bench times one thread beside them", [Run, Bench]>;
defm clock : Value<"clock", "wall|thread", "Time one thread by the wall (default) or by the time it has run", [Bench]>;
def progress : Flag<["--"], "progress">, In<[Bench]>,
    HelpText<"Show how far it is on standard error (default: on a terminal)">;
def json : Flag<["--"], "json">, In<[Bench, Check, Verify]>, HelpText<"Print JSON">;

def html : Flag<["--"], "html">, In<[Explain]>, HelpText<"Write a page for a browser (default where FILE ends in .html)">;

def warning : Joined<["-"], "W">, Every, MetaVarName<"CLASS">,
    HelpText<"-Wno-CLASS, -Werror, -Werror=CLASS; classes: unused, perf, numerics, spectral">;
defm error_limit : Value<"error-limit", "N", "Errors to print; 0 for all (default 20)",
                         [Compile, Check, Run, Verify, Bench, Explain, Diff]>;
defm diagnostics_format : Value<"diagnostics-format", "text|json", "How diagnostics are printed",
                                [Compile, Check, Run, Verify, Bench, Explain, Diff]>;
def help : Flag<["--"], "help">, Every, HelpText<"Print this help">;
def h : Flag<["-"], "h">, Every, Alias<help>;
def version : Flag<["--"], "version">, Every, HelpText<"Print the version">;
