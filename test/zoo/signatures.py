"""What each rule takes: its inputs, parameters and states with their shapes and the kind of values they may
have.

Written by hand beside the references, so that a spec whose names or shapes drift from them is noticed. One
line per rule: name | inputs | parameters | states, each as NAME:KIND(DIMS) or, with n micro-steps,
NAME:KIND(DIMS)[n]. Kinds are the functions of inputs.py; states without a kind may hold anything.
"""
import re
from dataclasses import dataclass, field

TABLE = """
linear_attention            | q:query(dk) k:key(dk) v:value(dv) | | S(dv,dk)
linear_attention_normalised | q:positive(dk) k:positive(dk) v:value(dv) | | S(dv,dk) z:positive(dk)
linear_attention_feature_map| q:query(dk) k:key(dk) v:value(dv) | | S(dv,dk) z:positive(dk)
linear_attention_rmsnorm    | q:query(dk) k:key(dk) v:value(dv) | w:real(dv) | S(dv,dk)
retnet                      | q:query(dk) k:key(dk) v:value(dv) | | S(dv,dk)
lightning                   | q:query(dk) k:key(dk) v:value(dv) | | S(dv,dk)
simple_gla                  | q:query(dk) k:key(dk) v:value(dv) g:log_decay() | | S(dv,dk)
mamba2                      | x:value(d) dt:step() B:key(n) C:query(n) | A:rate() D:real() | S(d,n)
gla                         | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) | | S(dv,dk)
hgrn2                       | q:query(dk) v:value(dv) g:log_decay(dk) | | S(dv,dk)
rwkv6                       | r:query(dk) k:key(dk) v:value(dv) w:log_decay(dk) | u:real(dk) | S(dv,dk)
rwkv7                       | r:query(dk) k:key(dk) kk:key(dk) v:value(dv) w:log_decay_06(dk) a:gate(dk) | | \
                              S(dv,dk)
deltanet                    | q:query(dk) k:unit(dk) v:value(dv) b:gate_2() | | S(dv,dk)
deltanet_loss               | q:query(dk) k:unit(dk) v:value(dv) b:gate_2() | | S(dv,dk)
gated_deltanet              | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate_2() | | S(dv,dk)
gated_deltanet_loss         | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate_2() | | S(dv,dk)
comba                       | q:query(dk) k:key(dk) p:key(dk) v:value(dv) g:log_decay() b:gate() | | S(dv,dk)
kda                         | q:query(dk) k:key(dk) v:value(dv) g:log_decay_5(dk) b:gate() | | S(dv,dk)
gated_deltanet2             | q:query(dk) k:key(dk) v:value(dv) g:log_decay_5(dk) b:gate(dk) w:gate(dv) | | S(dv,dk)
momentum_deltanet           | q:query(dk) k:key(dk) v:value(dv) g:log_decay() h:log_decay() b:gate() eta:gate() | | \
                              S(dv,dk) M:real(dv,dk)
preconditioned_gdn          | q:query(dk) k:key(dk) v:value(dv) g:log_decay() h:log_decay() b:gate() c:gate() | \
                              m:real() | S(dv,dk) A:positive(dk)
preconditioned_kda          | q:query(dk) k:key(dk) v:value(dv) g:log_decay_5(dk) h:log_decay() b:gate() c:gate() | \
                              m:real() | S(dv,dk) A:positive(dk)
kaczmarz                    | q:query(dk) k:key(dk) v:value(dv) g:log_decay() eta:gate() | | S(dv,dk)
deltaproduct                | q:query(dk) k:unit(dk)[n] v:value(dv)[n] b:gate_2()[n] g:log_decay() | | \
                              S(dv,dk)
dplr                        | q:query(dk) k:key(dk) a:unit(dk) b:unit(dk) v:value(dv) g:log_decay(dk) | | \
                              S(dv,dk)
longhorn                    | q:query(dk) k:key(dk) v:value(dv) b:step() | | S(dv,dk)
mlstm                       | q:query(dk) k:key(dk) v:value(dv) i:logit() f:logit() | | S:real(dv,dk) \
                              z:real(dk) m:real()
slstm                       | xz:logit(d) xi:logit(d) xf:logit(d) xo:logit(d) | Rz:recurrent(d,d) \
                              Ri:recurrent(d,d) Rf:recurrent(d,d) Ro:recurrent(d,d) | h:bounded(d) \
                              c:bounded(d) n:positive(d) m:real(d)
titans                      | q:query(dk) k:unit(dk) v:value(dv) eta:gate() theta:gate() al:gate() | | \
                              S(dv,dk) M:real(dv,dk)
mesanet                     | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() | lamb:ridge(dk) | \
                              G(dv,dk) H:gram(dk,dk)
mesanet_cg                  | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() | lamb:ridge(dk) | \
                              G(dv,dk) H:gram(dk,dk)
rls                         | q:query(dk) k:key(dk) v:value(dv) g:slow() b:gate() | lamb:ridge() | \
                              S(dv,dk) P:gram(dk,dk)
gsa                         | q:query(dk) k:key(dk) v:value(dv) s:gate(m) g:log_decay(m) | | Sk(m,dk) Sv(dv,m)
ttt_linear                  | q:query(d) k:key(d) v:value(d) eta:small() | w:real(d) b:real(d) | \
                              S:weights(d,d) c:real(d) G:weights(d,d) e:real(d)
ttt_mlp                     | q:query(d) k:key(d) v:value(d) eta:small() | w:real(d) b:real(d) \
                              A1:weights(dh,d) c1:real(dh) A2:weights(d,dh) c2:real(d) | \
                              W1:weights(dh,d) b1:real(dh) W2:weights(d,dh) b2:real(d)
lact                        | q:query(dk) k:unit(dk) v:value(dv) a:small() b:small() c:small() e:gate() | \
                              A1:weights(dh,dk) A2:weights(dv,dh) A3:weights(dh,dk) r1:positive(dh) \
                              r2:positive(dv) r3:positive(dh) | W1:weights(dh,dk) W2:weights(dv,dh) \
                              W3:weights(dh,dk) M1:weights(dh,dk) M2:weights(dv,dh) M3:weights(dh,dk)
titans_mlp                  | q:query(dk) k:key(dk) v:value(dv) eta:gate() theta:small() al:small() | \
                              A1:weights(dh,dk) A2:weights(dv,dh) | W1:weights(dh,dk) W2:weights(dv,dh) \
                              M1:weights(dh,dk) M2:weights(dv,dh)
atlas                       | q:query(dk) k:key(dk) v:value(dv) c:gate() al:gate() eta:small() \
                              theta:gate() | | S:real(dv,dk) M:real(dv,dk) k1:key(dk) k2:key(dk) \
                              v1:real(dv) v2:real(dv) c1:gate() c2:gate()
mamba1                      | x:value(d) dt:step(d) B:key(n) C:query(n) | A:rate(d,n) D:real(d) | S(d,n)
lru                         | x:value(d) | a:pole(n) b:pole(n) Br:weights(n,d) Bi:weights(n,d) \
                              Cr:weights(d,n) Ci:weights(d,n) D:real(d) | hr(n) hi(n)
hgrn                        | x:value(d) g:log_decay(d) | | h(d)
rglru                       | x:value(d) | Wa:weights(d,d) Wx:weights(d,d) ba:real(d) bx:real(d) L:real(d) \
                              | h(d)
mingru                      | x:value(d) | Wz:weights(d,d) Wh:weights(d,d) bz:real(d) bh:real(d) | h(d)
minlstm                     | x:value(d) | Wf:weights(d,d) Wi:weights(d,d) Wh:weights(d,d) bf:real(d) bi:real(d) \
                              bh:real(d) | h(d)
rwkv4                       | k:logit(d) v:value(d) | w:rate(d) u:real(d) | num:real(d) den:positive(d) \
                              m:real(d)
gru                         | xz:logit(d) xr:logit(d) xn:logit(d) | Rz:recurrent(d,d) Rr:recurrent(d,d) \
                              Rn:recurrent(d,d) bn:real(d) | h:bounded(d)
lstm                        | xi:logit(d) xf:logit(d) xg:logit(d) xo:logit(d) | Ri:recurrent(d,d) \
                              Rf:recurrent(d,d) Rg:recurrent(d,d) Ro:recurrent(d,d) | h:bounded(d) \
                              c:bounded(d)
softmax_attention           | q:query(dk) k:key(dk) v:value(dv) | |
alibi                       | q:query(dk) k:key(dk) v:value(dv) | |
fox                         | q:query(dk) k:key(dk) v:value(dv) g:log_decay() | |
deltaformer                 | q:query(dk) k:key(dk) v:value(dv) b:gate() | |
path                        | q:query(dk) k:key(dk) w:key(dk) v:value(dv) b:gate_2() | |
path_absolute               | q:query(dk) k:key(dk) w:key(dk) v:value(dv) b:gate_2() | | P:real(dk,dk)
"""

RULES = """
one_line                    | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | S(dv,dk)
ema                         | x:value() a:gate() | | h()
vector_beta                 | q:query(dk) k:unit(dk) v:value(dv) b:gate(dv) | | S(dv,dk)
value_rates                 | q:query(dk) k:key(dk) v:value(dv) b:gate(dv) g:log_decay() | | S(dv,dk)
decayed_rates               | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) b:gate(dv) | | S(dv,dk)
paced_keys                  | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) a:gate() b:gate() | | S(dv,dk)
stepped_rates               | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | w:real(dk) | S(dv,dk)
erased_elsewhere            | q:query(dk) k:key(dk) p:key(dk) v:value(dv) h:log_decay(dv) b:gate() | | S(dv,dk)
fixed_momentum              | q:query(dk) k:key(dk) v:value(dv) b:half() | | S(dv,dk) M:real(dv,dk)
value_forgetting            | q:query(dk) k:key(dk) v:value(dv) b:gate(dv) a:log_decay(dv) | | S(dv,dk)
values_in_turn              | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) g:log_decay(dv) \
                              b:gate() c:gate() | | S(dv,dk)
two_reads                   | q:query(dk) k:unit(dk) p:unit(dk) v:value(dv) b:half() c:half() \
                              g:log_decay() | | S(dv,dk)
two_deltas                  | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) b:half() c:half() \
                              g:log_decay() | | S(dv,dk)
deltas_in_turn              | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) g:log_decay(dk) \
                              b:gate() c:gate() | | S(dv,dk)
keyed_reads                 | q:query(dk) k:unit(dk) p:unit(dk) v:value(dv) g:log_decay(dk) b:half() c:half() \
                              | | S(dv,dk)
three_in_turn               | q:query(dk) k1:key(dk) k2:key(dk) k3:key(dk) v1:value(dv) v2:value(dv) v3:value(dv) \
                              b1:gate() b2:gate() b3:gate() g:log_decay() | | S(dv,dk)
two_removals                | q:query(dk) k:key(dk) a:unit(dk) c:unit(dk) v:value(dv) g:log_decay(dk) \
                              r:half() s:half() | | S(dv,dk)
two_outputs                 | q:query(dk) k:unit(dk) v:value(dv) b:gate() g:log_decay() | | S(dv,dk)
two_sided                   | q:query(dk) k:unit(dk) v:value(dv) w:unit(dv) b:gate() c:gate() | | S(dv,dk)
value_decay                 | q:query(dk) k:key(dk) v:value(dv) g:log_decay_5(dk) h:log_decay(dv) | | S(dv,dk)
signed_decay                | q:query(dk) k:key(dk) v:value(dv) a:sign() | | S(dv,dk)
momentum_vector_decay       | q:query(dk) k:unit(dk) v:value(dv) g:log_decay(dk) theta:gate() al:gate() | | \
                              S(dv,dk) M:real(dv,dk)
nesterov                    | q:query(dk) k:unit(dk) v:value(dv) eta:gate() theta:gate() | | S(dv,dk) \
                              M:real(dv,dk)
cascade                     | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | R(dv,dk) S(dv,dk)
trapezoid                   | q:query(dk) k:key(dk) v:value(dv) a:gate() b:real() c:real() | | S(dv,dk) \
                              k1:key(dk) v1:real(dv)
trapezoid_turned            | q:query(dk) k:key(dk) v:value(dv) dt:gate() mix:gate() | A:log_decay_5() | S(dv,dk) \
                              k1:key(dk) v1:real(dv)
delayed_delta               | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() c:gate() | | \
                              S(dv,dk) k1:key(dk) v1:real(dv)
left_slots                  | q:query(dk) k:key(dk) v:value(dv) g:log_decay(m) | | K(m,dk) V(m,dv)
matrix_output               | q:query(dk) k:key(dk) v:value(dv) a:gate() | | S(dv,dk)
weighted_loss               | q:query(dk) k:unit(dk) v:value(dv) w:gate(dv) b:gate() | | S(dv,dk)
saturated_write             | q:query(dk) k:unit(dk) v:value(dv) g:log_decay() | | S:real(dv,dk)
clipped_error               | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() h:step() | | S(dv,dk)
clipped_momentum            | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() m:half() | | S(dv,dk) M(dv,dk)
shared_saturation           | q:query(dk) k:key(dk) v:value(dv) f:log_decay() g:log_decay() b:gate() | | F(dv,dk) S(dv,dk)
power_error                 | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) b:quarter() | | S:real(dv,dk)
gated_error                 | q:query(dk) k:key(dk) f:key(dk) v:value(dv) r:logit(dv) a:gate() | | S(dv,dk)
clipped_gradient            | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | S(dv,dk)
novel_write                 | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | S(dv,dk)
centred_error               | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | S(dv,dk)
surprised                   | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) | | S(dv,dk)
layer_in_turn               | q:query(d) k:key(d) v:value(d) eta:small() | w:real(d) b:real(d) | S:weights(d,d)
second_moment               | q:query(dk) k:unit(dk) v:value(dv) b:gate() r:gate() | | S:real(dv,dk) \
                              D:positive(dv,dk)
dense_transition            | q:query(dk) k:key(dk) v:value(dv) | R:recurrent(dk,dk) | S(dv,dk)
micro_decay                 | q:query(dk) k:key(dk)[n] v:value(dv)[n] a:gate()[n] b:gate_2()[n] \
                              r:real(dv) | | S(dv,dk)
micro_keys                  | q:query(dk) k:key(dk)[n] v:value(dv)[n] g:log_decay(dk) a:gate() \
                              b:gate()[n] | | S(dv,dk)
gated_oja                   | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dv) b:gate() | | S(dv,dk)
in_rows                     | q:query(dk) k:key(dk) v:value(dv) g:log_decay(dk) b:gate() | | S(dk,dv)
signed_delta                | q:query(dk) k:key(dk) v:value(dv) a:sign() b:gate() | | S(dv,dk)
signed_keys                 | q:query(dk) k:key(dk) v:value(dv) a:sign(dk) b:gate() | | S(dv,dk)
erased_by_value             | q:query(dk) k:key(dk) v:value(dv) b:gate() | | S(dv,dk)
short_convolution           | q:query(dk) k:key(dk) v:value(dv) b:gate() g:log_decay() | \
                              c0:real(dk) c1:real(dk) c2:real(dk) | S(dv,dk) k1:key(dk) k2:key(dk)
scaled_keys                 | q:query(dk) k:key(dk) v:value(dv) b:logit() g:logit() | p:gate(dk) | S(dv,dk)
summed                      | x:value(d) b:key(n) | A:real(d,n) C:real(d,n) | S(d,n)
penalised                   | q:query(dk) k:key(dk) v:value(dv) th:logit() al:logit() | | S(dv,dk)
trained_start               | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() | S0:real(dv,dk) | \
                              S(dv,dk)
anchored                    | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | W:real(dv,dk) | S(dv,dk)
shifted_tokens              | r:query(dk) k:key(dk) w:logit(dk) v:value(dv) | mk:gate(dk) mw:gate(dk) mv:gate(dv) | \
                              lk:key(dk) lw:logit(dk) lv:real(dv) S(dv,dk)
two_keys                    | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) g:log_decay() b:gate() | | \
                              S(dv,dk)
fed_by_delta                | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() c:gate() | | \
                              F(dv,dk) S(dv,dk)
three_memories              | q:query(dk) k:key(dk) v:value(dv) g:log_decay() r1:gate() r2:gate() | | \
                              S0(dv,dk) S1(dv,dk) S2(dv,dk)
refined_gate                | q:query(dk) k:key(dk) g:logit(dk) r:logit(dk) v:value(dv) | | S(dv,dk)
low_rank_gate               | x:value(d) v:value(dv) k:key(dk) q:query(dk) | U:weights(dk,m) W:weights(m,d) | S(dv,dk)
projected                   | x:value(d) | Wq:weights(dk,d) Wk:weights(dk,d) Wv:weights(dv,d) A:weights(r,d) \
                              B:weights(dk,r) w:real(dk) | S(dv,dk)
mixed_projections           | x:value(d) | mr:gate(d) mk:gate(d) mv:gate(d) mw:gate(d) Wr:weights(dk,d) \
                              Wk:weights(dk,d) Wv:weights(dv,d) A:weights(r,d) B:weights(dk,r) w:real(dk) | \
                              l1:real(d) l2:real(d) S(dv,dk)
convolved_layer             | q:query(dk) k:key(dk) v:value(dv) z:value(dv) b:real() a:real() | bias:real() \
                              rate:real() q0:real(dk) q1:real(dk) q2:real(dk) q3:real(dk) k0:real(dk) \
                              k1:real(dk) k2:real(dk) k3:real(dk) v0:real(dv) v1:real(dv) v2:real(dv) \
                              v3:real(dv) w:real(dv) | lq1:real(dk) lq2:real(dk) lq3:real(dk) lk1:real(dk) \
                              lk2:real(dk) lk3:real(dk) lv1:real(dv) lv2:real(dv) lv3:real(dv) S(dv,dk)
made_keys                   | k:key(dk) u:key(dk) b:gate() g:log_decay() v:value(dv) q:query(dk) | | \
                              P(dk,dk) S(dv,dk)
turned_keys                 | c:gate(dk) s:gate(dk) v:value(dv) k:key(dk) q:query(dk) | | R(dv,dk) J(dv,dk)
saturated_in_turn           | q:query(dk) k:key(dk) p:key(dk) v:value(dv) w:value(dv) b:gate() c:gate() g:log_decay() | | S(dv,dk)
micro_saturated             | q:query(dk) k:key(dk)[n] v:value(dv)[n] b:gate()[n] g:log_decay(dk) | | S(dv,dk)
micro_functions             | q:query(dk) k:key(dk)[n] v:value(dv)[n] b:logit()[n] g:log_decay() | | S(dv,dk)
read_both_ways              | q:query(dk) k:key(dk) x:value(dv) v:value(dv) g:log_decay() | | S(dv,dk)
outer_decay                 | q:query(dk) k:key(dk) v:value(dv) g:logit(dk) h:logit(dv) | | S(dv,dk)
tempered_gate               | q:query(dk) k:key(dk) g:logit(dk) r:logit(dk) v:value(dv) | | S(dv,dk)
decayed_last                | q:query(dk) k:key(dk) v:value(dv) b:gate() g:log_decay(dk) | | S(dv,dk)
delta_normaliser            | q:query(dk) k:key(dk) v:value(dv) g:log_decay() b:gate() | | S(dv,dk) z(dk)
shared_error                | q:query(dk) k:key(dk) v:value(dv) f:log_decay() s:log_decay() b:half() c:half() | | \
                              F(dv,dk) S(dv,dk)
trapezoid_delta             | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() c:gate() | | S(dv,dk) P(dv,dk)
late_decay                  | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) a:gate() b:gate() c:gate() | | \
                              S(dv,dk)
read_before                 | q:query(dk) k:key(dk) p:key(dk) v:value(dv) u:value(dv) w:value(dv) a:gate() b:gate() \
                              c:gate() | | S(dv,dk)
momentum_beside             | q:query(dk) k:key(dk) p:key(dk) v:value(dv) a:gate() b:gate() m:gate() | | \
                              M:real(dv,dk) S(dv,dk)
frozen_error                | q:query(dk) k:key(dk) v:value(dv) m:gate() a:gate() b:small() | | M:real(dv,dk) S(dv,dk)
half_frozen                 | q:query(dk) k:key(dk) v:value(dv) b:gate() | | S(dv,dk)
error_beside                | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() m:gate() | | T(dv,dk) S(dv,dk)
mean_squares                | x:value(d) y:value() | | w(d)
mimo                        | X:value(dv,n) B:value(dk,n) C:value(dk,n) g:log_decay() | | S(dv,dk)
mimo_rows                   | x:value(dv) B:key(n,dk) C:key(n,dk) g:log_decay() | W:real(n,dv) Z:real(n,dv) | \
                              S(dv,dk)
block_delta                 | q:query(dk) K:real(dk,n) V:value(dv,n) b:gate() g:log_decay() | | S(dv,dk)
keyed_block                 | q:query(dk) K:real(dk,n) V:value(dv,n) b:gate() g:log_decay(dk) | | S(dv,dk)
block_delta_rows            | Q:key(n,dk) K:key(n,dk) V:value(n,dv) b:quarter(n) g:log_decay() | | S(dv,dk)
elman                       | x:value(m) | W:weights(d,m) R:recurrent(d,d) b:real(d) | h:bounded(d)
turned_reads                | q:query(d) k:key(d) v:value(d) a:gate() b:gate() | W:weights(d,d) | S(d,d)
read_again                  | q:query(d) k:unit(d) v:value(d) g:log_decay() b:gate() | | S(d,d)
second_order                | q:key(dk) k:key(dk) v:value(dv) | | M(dk,dk) C(dk,dv) G(dk,dv)
spiking                     | x:value(d) | w:real(d) | u(d)
remembered_decay            | q:query(dk) k:key(dk) v:value(dv) a:gate() b:gate() | | m:positive(dk) S(dv,dk)
biased                      | q:unit(dk) k:unit(dk) v:value(dv) a:gate() b:quarter() | | S(dv,dk) c(dv)
own_keys                    | q:unit(dk) k:unit(dk) p:unit(dk) v:value(dv) a:gate() b:quarter() | | S(dv,dk) R(dv,dk)
smoothed_error              | q:unit(dk) k:unit(dk) v:value(dv) a:gate() b:gate() c:gate() | | S(dv,dk) u(dv)
projected_output            | q:query(dk) k:key(dk) v:value(dv) g:log_decay() | W:weights(d,dv) | S(dv,dk)
"""

OUTPUTS = {"two_outputs": ["o", "p"], "matrix_output": ["o", "p"], "summed": ["o", "y"],
           "read_both_ways": ["o", "p"], **{name: ["O"] for name in (
    "mimo", "mimo_rows", "block_delta_rows", "softmax_attention", "alibi", "fox", "deltaformer", "path", "path_absolute")}}

SMALL_STATE_LONG_SEQUENCE = {"dk": 6, "dv": 5, "dh": 7}


@dataclass
class Tensor:
    """An argument of a rule: its name, the kind of its values, its dimensions by name, micro-steps first."""
    name: str
    kind: str
    dims: list


@dataclass
class Rule:
    """The arguments of one rule."""
    name: str
    file: str
    inputs: list = field(default_factory=list)
    params: list = field(default_factory=list)
    states: list = field(default_factory=list)

    @property
    def outputs(self):
        return OUTPUTS.get(self.name, ["o"])


def tensors(text):
    """Parse NAME:KIND(DIMS)[STEPS] ..; the kind `anything` where it is left out."""
    found = re.findall(r"(\w+)(?::(\w+))?\(([\w,]*)\)(?:\[(\w+)\])?", text)
    return [Tensor(name, kind or "anything", ([steps] if steps else []) + [d for d in dims.split(",") if d])
            for name, kind, dims, steps in found]


def rules(table, folder):
    """The rules of a table, whose specs lie in a folder."""
    lines = [line for line in table.replace("\\\n", " ").splitlines() if line.strip()]
    for line in lines:
        name, *parts = [part.strip() for part in line.split("|")]
        yield Rule(name, f"{folder}/{name}.rec", *[tensors(part) for part in parts])


ALL = {rule.name: rule for rule in [*rules(TABLE, "specs"), *rules(RULES, "test/rules")]}
