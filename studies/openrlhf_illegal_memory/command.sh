#!/bin/sh
# The command of OpenRLHF/OpenRLHF#815, behind `ray job submit ... --`, with the stand-in in place of the module.
cd "$(dirname "$0")" || exit
exec bisect-cfg bisect "$@" --good good.yaml -- python3 train_ppo_ray.py \
   --ref_num_nodes 1 --ref_num_gpus_per_node 2 --reward_num_nodes 0 --reward_num_gpus_per_node 0 \
   --actor_num_nodes 1 --actor_num_gpus_per_node 2 --colocate_actor_ref \
   --vllm_num_engines 2 --vllm_tensor_parallel_size 1 --enforce_eager \
   --pretrain /hf-models/Qwen2.5-1.5B/ --remote_rm_url /openrlhf_250223/examples/scripts/reward_func.py \
   --save_path /tmp --train_batch_size 128 --micro_rollout_batch_size 8 --rollout_batch_size 1024 \
   --n_samples_per_prompt 8 --max_epochs 1 --prompt_max_len 1024 --max_samples 50000 --generate_max_len 1024 \
   --init_kl_coef 1e-3 --gamma 1.0 --use_kl_loss --use_kl_estimator_k3 --advantage_estimator group_norm \
   --zero_stage 2 --flash_attn --bf16 --actor_learning_rate 5e-7 \
   --prompt_data /data/prompt-collection-v0.1.json --input_key context_messages --apply_chat_template \
   --normalize_reward --gradient_checkpointing --packing_samples --save_steps -1
