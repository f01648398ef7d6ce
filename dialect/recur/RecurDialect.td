// The dialect itself.
#ifndef RECUR_DIALECT
#define RECUR_DIALECT

include "mlir/IR/OpBase.td"

def Recur_Dialect : Dialect {
  let name = "recur";
  let cppNamespace = "::recur";
  let summary = "what the user said: states, one token's update, readout";
  let description = [{
    One `recur.rule` holds the meaning of a spec: what one head of a sequence model does with one token. Its body
    is linear algebra on values of symbolic shape. Nothing here speaks of chunks, threads or targets. The decisions
    behind the dialect are in Rationale.md.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
}

#endif
