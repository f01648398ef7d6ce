// How the warpgroups of a block share out its registers, found by what the assembler spills and serialises.
#include "lib/Cuda/Roles.h"

using namespace recur;
using namespace recur::cuda;

std::optional<RoleEmitter::Registers> RoleEmitter::shareRegisters() const {
  bool isApart = form.sumsApart(plan) || form.mapsApart(plan);
  Registers own;
  own.atEntry = 65536 / entry.threads / 8 * 8;
  own.few = 32, own.some = plan.system ? 96 : 64, own.many = plan.system ? 192 : 208;
  if (slabs == 1)
    own.few = 40, own.some = scorers.size() > 1 ? 120 : isApart ? 168 : 216, own.many = 232;
  if (slabs == 1 && isApart && scorers.size() > 1)
    own.few = 40, own.some = 88, own.many = 216;
  if (phase == Phase::Chain)
    own.few = 40, own.many = 232;
  if (plan.isWide() && plan.states == 1 && phase != Phase::Prepare)
    own.few = isApart ? 40 : 56, own.some = isApart ? 168 : 200, own.many = Registers::most;
  // Masks take registers of who makes them.
  if (plan.states > 1 && plan.system)
    own.few = plan.refinesInverse ? 48 : 56, own.some = plan.refinesInverse ? 80 : 72;
  else if (plan.states > 1)
    own.few = 48, own.some = 80, own.many = 192;
  if (plan.isWide() && plan.states > 1)
    own.few = 32, own.some = 64, own.many = 208;
  // Who walks the channels keeps rows of many of them; beside them one warpgroup has the state of all slabs.
  own.walk = 0, own.sum = !isApart ? 0 : scorers.size() > 1 ? 48 : 56;
  if (form.walksBeside && slabs > 1)
    own.few = 40, own.walk = 120, own.many = 232;
  else if (form.walksBeside && team > 1)
    own.few = 40, own.walk = 128, own.many = 216;
  else if (form.walksBeside)
    own.few = 40, own.walk = 152, own.many = 168;
  else if (form.walkers())
    own.some = plan.abreast > 1 ? 64 : 128, own.walk = plan.abreast > 1 ? 208 : 176;
  // Who asks for more than the others leave waits for ever.
  int64_t asked = own.few + own.sum + form.walkers() * own.walk + int64_t(scorers.size()) * own.some +
                  form.chainGroups(plan) * own.many;
  if (!own.areFixed() && asked > entry.threads / 128 * own.atEntry)
    return std::nullopt;
  return own;
}
