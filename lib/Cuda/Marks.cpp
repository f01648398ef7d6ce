#include "lib/Cuda/Marks.h"

using namespace mlir;
using namespace recur;

void cuda::letNextBegin(Ptx &ptx) { ptx.assembly("griddepcontrol.launch_dependents;", {}, {}); }

void cuda::awaitLaunch(Ptx &ptx) { ptx.assembly("griddepcontrol.wait;", {}, {}); }

void cuda::fenceDevice(Ptx &ptx) { ptx.assembly("fence.acq_rel.gpu;", {}, {}); }

void cuda::mark(Ptx &ptx, Value address) {
  ptx.assembly("fence.proxy.async.global; st.release.gpu.global.b32 [$0], $1;", {},
               {address, ptx.constant(1)});
}

Value cuda::takeTicket(Ptx &ptx, Value address) {
  return ptx.assembly("atom.global.add.u32 $0, [$1], 1;", ptx.b.getI32Type(), address)[0];
}

void cuda::awaitMark(Ptx &ptx, Value address) {
  ptx.assembly("{ .reg .pred unset; .reg .b32 word; again: ld.acquire.gpu.global.b32 word, [$0]; "
               "setp.eq.b32 unset, word, 0; @unset bra again; fence.proxy.async.global; }",
               {}, address);
}
